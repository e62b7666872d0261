package wake

import (
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// adopt takes over the hibernation that another tool has turned on, so that it ends like one of this project's. The value stays,
// so only server-side apply makes this project an owner of it. It fails with a conflict if the Cluster has changed since it was
// read.
func (c *Controller) adopt(ctx context.Context, seen *snapshot, from string, now time.Time) error {
	if from == "" {
		return nil
	}
	kind, err := c.Client.GroupVersionKindFor(&cnpgv1.Cluster{})
	if err != nil {
		return fmt.Errorf("find the kind of Cluster %s: %w", seen.name, err)
	}
	since := now.UTC().Format(time.RFC3339)
	adopted := &unstructured.Unstructured{}
	adopted.SetGroupVersionKind(kind)
	adopted.SetNamespace(seen.name.Namespace)
	adopted.SetName(seen.name.Name)
	adopted.SetUID(seen.cluster.UID)
	adopted.SetResourceVersion(seen.cluster.ResourceVersion)
	adopted.SetAnnotations(map[string]string{
		contract.AnnotationHibernation: "on", contract.AnnotationAsleepSince: since, contract.AnnotationAsleepReason: "hibernated by " + from,
	})
	err = c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(adopted), client.FieldOwner(contract.FieldManager))
	if apierrors.IsConflict(err) {
		return nil // its change leads to another reconciliation
	}
	if err != nil {
		return fmt.Errorf("take over the hibernation of Cluster %s: %w", seen.name, err)
	}
	c.log(ctx, seen, "the hibernation by another tool is taken over", false, "by", from)
	return c.Events.Write(ctx, seen.cluster, plan.Event{
		Reason: "HibernationAdopted", Message: fmt.Sprintf("%s has hibernated the cluster, and a connection wakes it", from), Occasion: since,
	}, now)
}
