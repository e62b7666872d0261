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

// resize is the body of a strategic merge patch, which merges containers by their names. Its resourceVersion makes it
// fail if the pod has changed since it was read.
type resize struct {
	Metadata resizeMetadata `json:"metadata"`
	Spec     resizeSpec     `json:"spec"`
}

type resizeMetadata struct {
	ResourceVersion string `json:"resourceVersion"`
}

type resizeSpec struct {
	Containers []resizedContainer `json:"containers"`
}

type resizedContainer struct {
	Name      string           `json:"name"`
	Resources resizedResources `json:"resources"`
}

type resizedResources struct {
	Requests map[string]resource.Quantity `json:"requests"`
}

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
	body, err := json.Marshal(resize{
		Metadata: resizeMetadata{ResourceVersion: pod.ResourceVersion},
		Spec:     resizeSpec{Containers: []resizedContainer{{Name: container, Resources: resizedResources{Requests: requests}}}},
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
