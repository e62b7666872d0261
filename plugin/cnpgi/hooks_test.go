package cnpgi

import (
	"context"
	"testing"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/reconciler"
	"k8s.io/apimachinery/pkg/types"
)

func TestPreLetsTheOperatorGoOn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, definition string
		want             []types.NamespacedName
	}{
		{"a cluster is put into the queue", `{"metadata":{"namespace":"shop","name":"orders"}}`, []types.NamespacedName{{Namespace: "shop", Name: "orders"}}},
		{"what cannot be read is passed over", `{`, nil},
		{"what has no name is passed over", `{}`, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var queue []types.NamespacedName
			hooks := &Hooks{Enqueue: func(name types.NamespacedName) { queue = append(queue, name) }}
			answer, err := hooks.Pre(t.Context(), &reconciler.ReconcilerHooksRequest{ResourceDefinition: []byte(row.definition)})
			if err != nil || answer.GetBehavior() != reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE {
				t.Errorf("the hook answered %v, %v", answer, err)
			}
			if len(queue) != len(row.want) || len(queue) == 1 && queue[0] != row.want[0] {
				t.Errorf("the queue is %v, want %v", queue, row.want)
			}
		})
	}
}

func TestPre_aBackupWaitsForADozingCluster(t *testing.T) {
	t.Parallel()
	answered := func(waits bool) func(context.Context, types.NamespacedName, string) bool {
		return func(_ context.Context, cluster types.NamespacedName, backup string) bool {
			if (cluster != types.NamespacedName{Namespace: "shop", Name: "orders"}) || backup != "nightly" {
				t.Errorf("Backup %s of cluster %s", backup, cluster)
			}
			return waits
		}
	}
	for _, row := range []struct {
		rule string
		wake func(context.Context, types.NamespacedName, string) bool
		want reconciler.ReconcilerHooksResult_Behavior
	}{
		{"while it is being woken", answered(true), reconciler.ReconcilerHooksResult_BEHAVIOR_REQUEUE},
		{"no longer than that", answered(false), reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE},
		{"without a gateway none dozes", nil, reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE},
	} {
		hooks := &Hooks{WakeForBackup: row.wake, Enqueue: func(name types.NamespacedName) { t.Errorf("%s: %s is put into the queue", row.rule, name) }}
		answer, err := hooks.Pre(t.Context(), &reconciler.ReconcilerHooksRequest{
			ResourceDefinition: []byte(`{"kind":"Backup","metadata":{"namespace":"shop","name":"nightly"},"spec":{"cluster":{"name":"orders"}}}`),
		})
		if err != nil || answer.GetBehavior() != row.want {
			t.Errorf("%s: %v, %v", row.rule, answer, err)
		}
		if requeues := answer.GetBehavior() == reconciler.ReconcilerHooksResult_BEHAVIOR_REQUEUE; requeues != (answer.GetRequeueAfter() > 0) {
			t.Errorf("%s: it is asked again after %d s", row.rule, answer.GetRequeueAfter())
		}
	}
}

func TestPre_endsTheLoopOfAClusterThatDozes(t *testing.T) {
	t.Parallel()
	const definition = `{"kind":"Cluster","metadata":{"namespace":"shop","name":"orders"}}`
	for _, row := range []struct {
		rule  string
		after time.Duration
		want  reconciler.ReconcilerHooksResult_Behavior
	}{
		{"one that dozes", 45 * time.Second, reconciler.ReconcilerHooksResult_BEHAVIOR_REQUEUE},
		{"no other", 0, reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE},
	} {
		enqueued := 0
		hooks := &Hooks{
			Enqueue: func(types.NamespacedName) { enqueued++ },
			EndLoop: func(_ context.Context, cluster types.NamespacedName, sent []byte) time.Duration {
				if (cluster != types.NamespacedName{Namespace: "shop", Name: "orders"}) || string(sent) != definition {
					t.Errorf("cluster %s: %s", cluster, sent)
				}
				return row.after
			},
		}
		answer, err := hooks.Pre(t.Context(), &reconciler.ReconcilerHooksRequest{ResourceDefinition: []byte(definition)})
		if err != nil || answer.GetBehavior() != row.want || answer.GetRequeueAfter() != int64(row.after.Seconds()) || enqueued != 1 {
			t.Errorf("%s: %v, %v; enqueued %d times", row.rule, answer, err, enqueued)
		}
	}
}
