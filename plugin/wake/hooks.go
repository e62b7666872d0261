package wake

import (
	"context"
	"encoding/json"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// hooks are what the operator asks for.
type hooks struct {
	*unattended
	stopping *waker.Stopping

	fenced keyed.Map[types.NamespacedName, plan.Specification] // that of each cluster's fence, or newer if it has none
}

// backupWakeTimeout bounds the requests to the API server for a Backup, because the operator waits for the answer.
const backupWakeTimeout = 5 * time.Second

// WakeForBackup wakes the cluster if it dozes, and reports whether its Backup has to wait for that. The operator calls
// it again as long as the Backup waits or is pending. For a hibernated cluster it does not call: it has marked the
// Backup as failed before.
func (h *hooks) WakeForBackup(ctx context.Context, name types.NamespacedName, backup string) (waits bool) {
	ctx, cancel := context.WithTimeout(ctx, backupWakeTimeout)
	defer cancel()
	waits, err := h.wakeForBackup(ctx, name, backup)
	if err != nil {
		h.Logger.Warn("cannot wake a dozing cluster for its Backup",
			"namespace", name.Namespace, "cluster", name.Name, "backup", backup, "error", err.Error())
	}
	return waits
}

func (h *hooks) wakeForBackup(ctx context.Context, name types.NamespacedName, backup string) (waits bool, err error) {
	cluster, err := h.Informers.Cluster(ctx, name)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	now := time.Now()
	switch view := h.stopping.View(cluster, now); {
	case view.Deleting:
		return false, nil
	case view.MayStillStop, view.Dozing && !view.Stopped: // PostgreSQL would stop even if the fence were lifted now
		return true, nil
	case !view.Dozing:
		return false, nil
	}
	_, err = h.wakeCluster(ctx, cluster, h.stopping.View(cluster, now), 1, plan.Wake{Cause: contract.CauseBackup, By: "Backup " + backup}, now)
	return true, err // the operator asks again
}

// noteSpecification records the specification of a cluster until we fence it. It must be called for every state, in
// order. That of a cluster that dozed before this replica was started is taken to be its fence's: after a change since
// then its sidecar, which knows that one, has it hibernate once it may.
func (h *hooks) noteSpecification(cluster *cnpgv1.Cluster) {
	name := client.ObjectKeyFromObject(cluster)
	if !contract.Dozes(cluster.Annotations, cluster.ManagedFields) || h.fenced.Get(name) == (plan.Specification{}) {
		h.fenced.Set(name, plan.SpecificationOf(cluster))
	}
}

// EndLoop returns how long the operator must wait before it reconciles a dozing cluster again, because there is nothing
// to do until it is woken; 0 if the operator must continue now. The definition is the Cluster that the operator has
// sent.
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
	if !(plan.Loop{Kept: kept, Sent: &sent, Fenced: h.fenced.Get(name), Instances: pods}).Ends(time.Now()) {
		return 0
	}
	return plan.LoopInterval(kept.UID)
}
