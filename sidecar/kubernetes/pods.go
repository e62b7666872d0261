package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Pod reads this pod from the API server.
func (c *Client) Pod(ctx context.Context) (*Pod, error) {
	ctx, cancel := callContext(ctx)
	defer cancel()
	var pod Pod
	if err := c.rest.Get().AbsPath(c.podPath()...).Do(ctx).Into(&pod); err != nil {
		return nil, fmt.Errorf("read the pod: %w", classify(err))
	}
	return &pod, nil
}

// Resize sets requests of a container of this pod in place. It fails with [ErrConflict] if the pod has changed since it
// was read.
func (c *Client) Resize(ctx context.Context, pod *Pod, container string, requests map[string]resource.Quantity) error {
	if pod.ResourceVersion == "" {
		return fmt.Errorf("resize the pod: %w", &RefusedError{err: errNoVersion})
	}
	resized := map[string]any{"name": container, "resources": map[string]any{"requests": requests}}
	body, err := json.Marshal(map[string]any{ // a strategic merge patch merges containers by their names
		"metadata": map[string]any{"resourceVersion": pod.ResourceVersion},
		"spec":     map[string]any{"containers": []any{resized}},
	})
	if err != nil {
		return fmt.Errorf("encode the resize of the pod: %w", &RefusedError{err: err})
	}
	ctx, cancel := callContext(ctx)
	defer cancel()
	err = c.rest.Patch(types.StrategicMergePatchType).AbsPath(append(c.podPath(), "resize")...).
		VersionedParams(&metav1.PatchOptions{FieldManager: contract.FieldManager}, metav1.ParameterCodec).
		MaxRetries(0).Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("resize the pod: %w", classify(err))
	}
	return nil
}

// podPath is the path of this pod, whose group is not the client's.
func (c *Client) podPath() []string {
	return []string{"api", "v1", "namespaces", c.identity.Namespace, "pods", c.identity.Pod}
}
