package cnpgi

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/reconciler"
	"k8s.io/apimachinery/pkg/types"
)

// Hooks is the reconciler hooks service.
type Hooks struct {
	reconciler.UnimplementedReconcilerHooksServer
	// Enqueue must not block.
	Enqueue func(types.NamespacedName)
	// WakeForBackup wakes the cluster if it dozes, and reports whether its Backup has to wait for that; nil: none does.
	WakeForBackup func(ctx context.Context, cluster types.NamespacedName, backup string) (waits bool)
	// EndLoop returns the requeue delay of a dozing cluster, whose reconciliation ends here, or 0 to let the operator
	// continue. nil: no cluster dozes.
	EndLoop func(ctx context.Context, cluster types.NamespacedName, definition []byte) (after time.Duration)
}

// GetCapabilities registers the hooks for Clusters and Backups.
func (h *Hooks) GetCapabilities(
	context.Context, *reconciler.ReconcilerHooksCapabilitiesRequest,
) (*reconciler.ReconcilerHooksCapabilitiesResult, error) {
	return &reconciler.ReconcilerHooksCapabilitiesResult{
		ReconcilerCapabilities: []*reconciler.ReconcilerHooksCapability{
			{Kind: reconciler.ReconcilerHooksCapability_KIND_CLUSTER}, {Kind: reconciler.ReconcilerHooksCapability_KIND_BACKUP},
		},
	}, nil
}

// reconciled is a Cluster, or a Backup that has not ended.
type reconciled struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Cluster struct {
			Name string `json:"name"`
		} `json:"cluster"`
	} `json:"spec"`
}

// Pre enqueues a cluster and lets the operator continue, unless the cluster dozes, or a Backup has to wait: the
// operator would wait for an instance that is fenced.
func (h *Hooks) Pre(
	ctx context.Context, request *reconciler.ReconcilerHooksRequest,
) (*reconciler.ReconcilerHooksResult, error) {
	var r reconciled
	err := json.Unmarshal(request.GetResourceDefinition(), &r)
	cluster := types.NamespacedName{Namespace: r.Metadata.Namespace, Name: r.Spec.Cluster.Name}
	switch {
	case err != nil, r.Metadata.Name == "":
	case r.Kind != "Backup":
		cluster.Name = r.Metadata.Name
		h.Enqueue(cluster)
		if h.EndLoop != nil {
			return again(h.EndLoop(ctx, cluster, request.GetResourceDefinition())), nil
		}
	case h.WakeForBackup != nil && h.WakeForBackup(ctx, cluster, r.Metadata.Name):
		return again(backupWaits), nil
	}
	return goOn(), nil
}

// backupWaits is after how long a Backup is reconciled again whose cluster is being woken.
const backupWaits = 2 * time.Second

// Post lets the operator continue.
func (h *Hooks) Post(context.Context, *reconciler.ReconcilerHooksRequest) (*reconciler.ReconcilerHooksResult, error) {
	return goOn(), nil
}

// again asks the operator to requeue the object after a delay, in whole seconds; 0 lets it continue.
func again(after time.Duration) *reconciler.ReconcilerHooksResult {
	if after == 0 {
		return goOn()
	}
	return &reconciler.ReconcilerHooksResult{
		Behavior: reconciler.ReconcilerHooksResult_BEHAVIOR_REQUEUE, RequeueAfter: int64(after / time.Second),
	}
}

func goOn() *reconciler.ReconcilerHooksResult {
	return &reconciler.ReconcilerHooksResult{Behavior: reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE}
}
