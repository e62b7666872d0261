package wake

import (
	"context"
	"encoding/json"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// noteSpecification records the specification of a cluster that we have not fenced. It must be called for every state,
// in order. After a restart of the plugin, that of a cluster that dozes is unknown until its doze ends.
func (h *hooks) noteSpecification(cluster *cnpgv1.Cluster) {
	if !contract.Dozes(cluster.Annotations, cluster.ManagedFields) {
		h.unfenced.Set(client.ObjectKeyFromObject(cluster), plan.SpecificationOf(cluster))
	}
}

// EndLoop returns after how long the operator is to reconcile the cluster again, because the cluster dozes and there is
// nothing to do for it until it is woken; 0 if the operator is to continue. The definition is the Cluster that the
// operator has sent.
func (h *hooks) EndLoop(ctx context.Context, name types.NamespacedName, definition []byte) time.Duration {
	kept, err := h.Informers.Cluster(ctx, name)
	if err != nil || kept.Annotations[contract.AnnotationPostgresStopped] == "" {
		return 0
	}
	var sent cnpgv1.Cluster
	if json.Unmarshal(definition, &sent) != nil {
		return 0
	}
	pods, err := h.Informers.Pods(ctx, name)
	if err != nil {
		return 0
	}
	if !(plan.Loop{Kept: kept, Sent: &sent, Unfenced: h.unfenced.Get(name), Instances: pods}).Ends(time.Now()) {
		return 0
	}
	return plan.LoopInterval(kept.UID)
}
