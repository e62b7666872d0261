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

// adopt takes over a hibernation that another tool has turned on, so that a connection ends it. The value does not
// change, so only server-side apply makes this project a co-owner of it. adopt does nothing if the Cluster has changed
// since it was read, and logs a warning if the admission policies of an earlier version forbid it.
func (w *unattended) adopt(ctx context.Context, seen *snapshot, from string, now time.Time) error {
	if from == "" {
		return nil
	}
	kind, err := w.Client.GroupVersionKindFor(&cnpgv1.Cluster{})
	if err != nil {
		return fmt.Errorf("find the kind of Cluster %s: %w", seen.name, err)
	}
	since := seen.view.HibernatedAt
	if since.IsZero() {
		since = now
	}
	adopted := &unstructured.Unstructured{}
	adopted.SetGroupVersionKind(kind)
	adopted.SetNamespace(seen.name.Namespace)
	adopted.SetName(seen.name.Name)
	adopted.SetUID(seen.cluster.UID)
	adopted.SetResourceVersion(seen.cluster.ResourceVersion)
	adopted.SetAnnotations(map[string]string{
		contract.AnnotationHibernation: "on", contract.AnnotationAsleepReason: plan.HibernatedBy + from,
		contract.AnnotationAsleepSince: since.UTC().Format(time.RFC3339),
	})
	err = w.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(adopted), client.FieldOwner(contract.FieldManager))
	switch {
	case apierrors.IsConflict(err): // its change leads to another reconciliation
	case apierrors.IsForbidden(err):
		w.Logger.Warn("cannot take over the hibernation of a cluster", "namespace", seen.name.Namespace, "cluster", seen.name.Name,
			"by", from, "error", err.Error())
	case err != nil:
		return fmt.Errorf("take over the hibernation of Cluster %s: %w", seen.name, err)
	default:
		w.Logger.Info("the hibernation by another tool is taken over", "namespace", seen.name.Namespace, "cluster", seen.name.Name, "by", from)
	}
	return nil
}
