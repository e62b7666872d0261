package metrics

import (
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// lines returns the lines of a scrape for one metric.
func lines(t *testing.T, gatherer prometheus.Gatherer, name string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(page(t, gatherer)) {
		if rest, ok := strings.CutPrefix(line, prefix+name+"{"); ok {
			found = append(found, strings.TrimSpace(rest))
		}
	}
	return found
}

func TestFleet_countsTheWakesOfEachClusterFromZero(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster("blue", on()), cluster("green", on()))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Fleet)
	blue := types.NamespacedName{Namespace: "shop", Name: "blue"}
	w.wakes.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultSuccess, time.Second)
	w.wakes.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultSuccess, time.Second)
	w.wakes.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultTimeout, time.Minute)
	w.wakes.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultByHand, time.Second)
	w.wakes.Woke(blue, contract.CauseConnection, waker.DepthHibernation, waker.ResultMaintenance, time.Second)
	want := []string{
		`cluster="blue",namespace="shop",result="success"} 2`, `cluster="blue",namespace="shop",result="timeout"} 1`,
		`cluster="green",namespace="shop",result="success"} 0`, `cluster="green",namespace="shop",result="timeout"} 0`,
	}
	if got := lines(t, registry, "cluster_wakes_total"); !slices.Equal(got, want) {
		t.Errorf("shown as %q, want %q", got, want)
	}
}

func TestFleet_forgetsTheWakesOfClustersThatAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster("stays", on()))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Fleet)
	for _, name := range []string{"stays", "gone"} {
		w.wakes.Woke(types.NamespacedName{Namespace: "shop", Name: name}, contract.CauseConnection, waker.DepthHibernation, waker.ResultSuccess, time.Second)
	}
	if got := lines(t, registry, "cluster_wakes_total"); len(got) != 2 || len(w.wakes.byCluster.counts) != 1 {
		t.Errorf("%d clusters are remembered, shown as %q", len(w.wakes.byCluster.counts), got)
	}
}

func TestFleet_showsServicesWithoutARouteWhileAsleep(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		of   *cnpgv1.Cluster
		want []string
	}{
		{"a cluster that a connection wakes", ours(cluster("blue", on(contract.AnnotationHibernation, "on"), asleep(noon))), []string{`cluster="blue",namespace="shop"} 2`}},
		{"one that only people wake", cluster("blue", on(contract.AnnotationHibernation, "on"), asleep(noon)), nil},
		{"one that is awake", cluster("blue", on()), nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, row.of)
			w.sources.Unrouted = func(types.NamespacedName) int { return 2 }
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(w.Fleet)
			if got := lines(t, registry, "unrouted_services"); !slices.Equal(got, row.want) {
				t.Errorf("shown as %q, want %q", got, row.want)
			}
		})
	}
}

func TestFleet_showsWhomTheOperatorDoesNotReconcile(t *testing.T) {
	t.Parallel()
	const unknown = "Unknown plugin: '%s'. This may be caused by the plugin not being loaded correctly by the operator."
	for _, row := range []struct{ rule, phase, reason, sleep, want string }{
		{"a healthy cluster is reconciled", cnpgv1.PhaseHealthy, "", "off", "0"},
		{"one whose operator does not know the plugin is not", cnpgv1.PhaseUnknownPlugin, strings.Replace(unknown, "%s", contract.PluginName, 1), "off", "1"},
		{"that it does not know another is not this one's fault", cnpgv1.PhaseUnknownPlugin, strings.Replace(unknown, "%s", "barman-cloud.cloudnative-pg.io", 1), "off", "0"},
		{"a call that failed", cnpgv1.PhaseFailurePlugin, "Encountered an error while interacting with plugins: EOF", "off", "1"},
		{"the phase of a hibernated cluster is an old one", cnpgv1.PhaseFailurePlugin, "EOF", "on", "0"},
		{"so is that of one that dozes", cnpgv1.PhaseFailurePlugin, "EOF", "doze", "0"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			c := cluster("blue", on(contract.AnnotationHibernation, row.sleep))
			if row.sleep == "doze" {
				c = ours(cluster("blue", on(contract.AnnotationFencedInstances, contract.FencedInstancesAll, contract.AnnotationDozingSince, "2026-03-02T12:01:30Z")))
			}
			c.Status.Phase, c.Status.PhaseReason = row.phase, row.reason
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(newWorld(t, c).Fleet)
			want := []string{`cluster="blue",namespace="shop"} ` + row.want}
			if got := lines(t, registry, "reconciliation_blocked"); !slices.Equal(got, want) {
				t.Errorf("shown as %q, want %q", got, want)
			}
		})
	}
}
