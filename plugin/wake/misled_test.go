package wake

import (
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
)

// A slice that names another Service's port, however it came about, leads clients into another tenant's database.
func TestController_refusesRatherThanMisleads(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, leadsTo string
		by            string
		want          map[string][]string
	}{
		{"its own replica removes it, although it can make no other", "a", "a", nowhere},
		{"another replica does", "a", "b", nowhere},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.cluster(asleep)
				replicas := map[string]*replica{"a": w.replica("a", "10.1.0.1"), "b": w.replica("b", "10.1.0.2")}
				judge := replicas[row.by]
				judge.ports.Range = ports.Range{First: 10000, Last: 10000}
				bills := ports.Owner{UID: "bills-rw", Namespace: "office", Name: "bills-rw"}
				if _, err := judge.ports.Assign(t.Context(), []ports.Request{{Owner: bills}}, time.Now()); err != nil {
					t.Fatal(err)
				}
				services, err := judge.Informers.Services(t.Context(), orders)
				if err != nil {
					t.Fatal(err)
				}
				for i := range services {
					if services[i].Name == "orders-rw" {
						misled := endpointslice.Wanted(&services[i], orders.Name, replicas[row.leadsTo].Settings.Replica, 10000)
						w.put(&misled[0])
					}
				}
				w.wants("before", map[string][]string{row.leadsTo: {"orders-rw"}})
				if _, err := judge.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err != nil {
					t.Fatal(err)
				}
				w.wants("after", row.want)
				if got := judge.Unrouted(orders); got == 0 {
					t.Error("the Services that lead nowhere are not counted")
				}
			})
		})
	}
}
