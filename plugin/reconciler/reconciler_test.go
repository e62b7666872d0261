package reconciler

import (
	"testing"

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
			server := &Server{Enqueue: func(name types.NamespacedName) { queue = append(queue, name) }}
			answer, err := server.Pre(t.Context(), &reconciler.ReconcilerHooksRequest{ResourceDefinition: []byte(row.definition)})
			if err != nil || answer.GetBehavior() != reconciler.ReconcilerHooksResult_BEHAVIOR_CONTINUE {
				t.Errorf("the hook answered %v, %v", answer, err)
			}
			if len(queue) != len(row.want) || len(queue) == 1 && queue[0] != row.want[0] {
				t.Errorf("the queue is %v, want %v", queue, row.want)
			}
		})
	}
}
