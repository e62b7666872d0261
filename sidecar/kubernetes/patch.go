package kubernetes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// errNoVersion prevents sending a patch without its precondition.
var errNoVersion = errors.New("unknown resourceVersion")

// patch is the body of a JSON merge patch. Its resourceVersion makes it fail if the object has changed since it was
// read.
type patch struct {
	Metadata patchMetadata `json:"metadata"`
	Spec     *suspension   `json:"spec,omitempty"`
	// manager is the field manager, if it is not the usual one.
	manager string
}

type patchMetadata struct {
	ResourceVersion string `json:"resourceVersion"`
	// Annotations to be removed map to nil.
	Annotations map[string]*string `json:"annotations"`
}

type suspension struct {
	Suspend bool `json:"suspend"`
}

// apply sends a patch and decodes the object in the answer into result. It fails with [ErrConflict] if the object has
// changed since it was read.
//
// The patch is sent once. client-go would retry it after a failure with Retry-After, and the resulting conflict with
// its own first attempt would look as if nothing had been done.
func (c *Client) apply(ctx context.Context, resource, name string, p patch, result runtime.Object) error {
	if p.Metadata.ResourceVersion == "" {
		return fmt.Errorf("patch %s %s: %w", resource, name, &RefusedError{err: errNoVersion})
	}
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the patch of %s %s: %w", resource, name, &RefusedError{err: err})
	}
	ctx, cancel := callContext(ctx)
	defer cancel()
	err = c.rest.Patch(types.MergePatchType).Namespace(c.identity.Namespace).Resource(resource).Name(name).
		VersionedParams(&metav1.PatchOptions{FieldManager: cmp.Or(p.manager, contract.FieldManager)}, metav1.ParameterCodec).
		MaxRetries(0).Body(body).Do(ctx).Into(result)
	if err != nil {
		return fmt.Errorf("patch %s %s: %w", resource, name, classify(err))
	}
	return nil
}

// Hibernate turns hibernation on and records the reason and time, in one patch that fails with [ErrConflict] if the
// Cluster has changed since the view. It returns the resulting Cluster. The counts for its next pod must not prevent
// sleep: if the API server may have refused them, the patch is repeated without them, and removes an old value if that
// is permitted. All patches together take at most callTimeout.
func (c *Client) Hibernate(ctx context.Context, v View, at time.Time, reason, counts string) (View, error) {
	on, since := "on", at.UTC().Format(time.RFC3339)
	annotations := map[string]*string{
		contract.AnnotationHibernation: &on, contract.AnnotationAsleepSince: &since, contract.AnnotationAsleepReason: &reason, contract.AnnotationAnnounced: nil,
		contract.AnnotationSleepRequested: nil, // fulfilled, and must not outlast a wake
	}
	ctx, cancel := callContext(ctx)
	defer cancel()
	var values []*string // for the annotation of the counts, to be tried before it is left as it is
	if counts != "" && !c.countsRefused.Load() {
		values = []*string{&counts, nil}
	}
	for i, value := range values {
		annotations[contract.AnnotationCounts] = value
		after, err := c.annotate(ctx, v, annotations)
		if !contentRefused(err) {
			c.countsRefused.Store(err == nil && i > 0)
			return after, err
		}
	}
	delete(annotations, contract.AnnotationCounts)
	after, err := c.annotate(ctx, v, annotations)
	if len(values) > 0 { // otherwise hibernation itself may be what is refused
		c.countsRefused.Store(err == nil)
	}
	return after, err
}

// contentRefused reports whether a patch may have been refused for what it contains.
func contentRefused(err error) bool {
	refused := &RefusedError{}
	return errors.As(err, &refused) && !slices.Contains(
		[]int{0, http.StatusUnauthorized, http.StatusNotFound, http.StatusTooManyRequests}, refused.Code)
}

// Fence fences the instance so that the cluster dozes and records the time, in one patch that fails with [ErrConflict]
// if the Cluster has changed since the view. It returns the resulting Cluster. It also removes the time of the last
// hibernation, which a wake by hand leaves and which would be taken for the beginning of the doze.
func (c *Client) Fence(ctx context.Context, v View, at time.Time) (View, error) {
	fence, since := contract.FencedInstancesAll, at.UTC().Format(time.RFC3339)
	return c.annotate(ctx, v, map[string]*string{
		contract.AnnotationFencedInstances: &fence, contract.AnnotationDozingSince: &since, contract.AnnotationPostgresStopped: nil, contract.AnnotationAnnounced: nil,
		contract.AnnotationRestartFailed: nil, contract.AnnotationAsleepSince: nil, contract.AnnotationAsleepReason: nil,
	})
}

// LiftFence removes our fence, and returns the resulting Cluster. It fails with [ErrConflict] if the Cluster has
// changed since the view.
func (c *Client) LiftFence(ctx context.Context, v View) (View, error) {
	return c.annotate(ctx, v, map[string]*string{contract.AnnotationFencedInstances: nil})
}

// RemoveAnnouncement removes the announcement, and what a doze that is over has recorded, and returns the resulting
// Cluster. It fails with [ErrConflict] if the Cluster has changed since the view.
func (c *Client) RemoveAnnouncement(ctx context.Context, v View) (View, error) {
	return c.annotate(ctx, v, map[string]*string{
		contract.AnnotationAnnounced: nil, contract.AnnotationDozingSince: nil, contract.AnnotationPostgresStopped: nil,
		contract.AnnotationRestartFailed: nil,
	})
}

// Withdraw turns off the hibernation that we turned on, and returns the resulting Cluster. It fails with [ErrConflict]
// if the Cluster has changed since the view: the operator may have begun to delete pods.
func (c *Client) Withdraw(ctx context.Context, v View) (View, error) {
	return c.annotate(ctx, v, map[string]*string{
		contract.AnnotationHibernation: nil, contract.AnnotationAsleepSince: nil, contract.AnnotationAsleepReason: nil,
	})
}

// Annotate sets an annotation of the Cluster, or removes it if the value is nil, and returns the resulting Cluster. It
// fails with [ErrConflict] if the Cluster has changed since the view.
func (c *Client) Annotate(ctx context.Context, v View, key string, value *string) (View, error) {
	return c.annotate(ctx, v, map[string]*string{key: value})
}

// extendingManager is the field manager of a keep-awake time with which the channel has extended that of another
// manager. The channel does not remove such a time, because it includes the other manager's.
const extendingManager = contract.FieldManager + "-extended"

// KeepAwake sets the annotation keep-awake-until, or removes it if the value is nil, and returns the resulting Cluster.
// It fails with [ErrConflict] if the Cluster has changed since the view. extends says that the value replaces a time
// that is not ours and still in force.
func (c *Client) KeepAwake(ctx context.Context, v View, until *string, extends bool) (View, error) {
	manager := contract.FieldManager
	if extends {
		manager = extendingManager
	}
	return c.annotateAs(ctx, manager, v, map[string]*string{contract.AnnotationKeepAwakeUntil: until})
}

func (c *Client) annotate(ctx context.Context, v View, annotations map[string]*string) (View, error) {
	return c.annotateAs(ctx, contract.FieldManager, v, annotations)
}

func (c *Client) annotateAs(ctx context.Context, manager string, v View, annotations map[string]*string) (View, error) {
	var cluster Cluster
	p := patch{Metadata: patchMetadata{ResourceVersion: v.ResourceVersion, Annotations: annotations}, manager: manager}
	if err := c.apply(ctx, "clusters", c.identity.Cluster, p, &cluster); err != nil {
		return View{}, err
	}
	return viewOf(&cluster), nil
}
