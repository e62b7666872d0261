// Package metrics shows what the plugin does and in which state the clusters are: the series of a sleeping cluster can only
// come from here.
package metrics

import (
	"context"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/lifecycle"
	"github.com/cnpg-i/scale-to-zero/plugin/rights"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// prefix is the common beginning of every metric.
const prefix = "cnpg_scale_to_zero_"

// collectTimeout bounds a scrape; what is read comes from the informers.
const collectTimeout = 5 * time.Second

// States of a cluster.
const (
	stateDisabled    = "disabled"
	stateAwake       = "awake"
	stateHibernating = "hibernating"
	stateAsleep      = "asleep"
)

// Fleet makes the series of every cluster that lists the plugin, at each scrape anew: those of a cluster that has gone are
// gone with it.
type Fleet struct {
	clusters       client.Reader
	state, invalid *prometheus.Desc
}

// NewFleet makes the collector; clusters reads from the informers.
func NewFleet(clusters client.Reader) *Fleet {
	return &Fleet{
		clusters: clusters,
		state: prometheus.NewDesc(prefix+"cluster_state", "In which state the cluster is: 1 for the one it is in.",
			[]string{"namespace", "cluster", "state"}, nil),
		invalid: prometheus.NewDesc(prefix+"settings_invalid", "How many annotations of the cluster are not understood.",
			[]string{"namespace", "cluster"}, nil),
	}
}

// Describe sends the descriptions.
func (f *Fleet) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- f.state
	descriptions <- f.invalid
}

// Collect sends the series of every cluster. If the clusters cannot be read there are none.
func (f *Fleet) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var clusters cnpgv1.ClusterList
	if err := f.clusters.List(ctx, &clusters); err != nil {
		return
	}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if !rights.Lists(cluster) {
			continue
		}
		policy, problems := idle.ParsePolicy(cluster.Annotations, time.Now())
		metrics <- prometheus.MustNewConstMetric(f.invalid, prometheus.GaugeValue, float64(len(problems)), cluster.Namespace, cluster.Name)
		in := stateOf(cluster, policy)
		for _, state := range []string{stateDisabled, stateAwake, stateHibernating, stateAsleep} {
			value := 0.0
			if state == in {
				value = 1
			}
			metrics <- prometheus.MustNewConstMetric(f.state, prometheus.GaugeValue, value, cluster.Namespace, cluster.Name, state)
		}
	}
}

// stateOf tells the state: hibernation by the operator's condition, since phase and readiness stay as they were.
func stateOf(cluster *cnpgv1.Cluster, policy idle.Policy) string {
	for _, condition := range cluster.Status.Conditions {
		if condition.Type == idle.KeyHibernation && condition.Status == metav1.ConditionTrue {
			return stateAsleep
		}
	}
	switch {
	case cluster.Annotations[idle.KeyHibernation] == "on":
		return stateHibernating
	case !policy.Enabled:
		return stateDisabled
	default:
		return stateAwake
	}
}

// Injections counts the calls of the lifecycle hook.
type Injections struct{ total *prometheus.CounterVec }

// NewInjections makes the counter, preset to zero for everything that can happen.
func NewInjections(registerer prometheus.Registerer) *Injections {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "injections_total", Help: "Calls of the lifecycle hook, by how they ended.",
	}, []string{"operation", "result"})
	for _, operation := range []string{"TYPE_CREATE", "TYPE_EVALUATE"} {
		for _, result := range []lifecycle.Result{lifecycle.ResultInjected, lifecycle.ResultSkipped, lifecycle.ResultMissing, lifecycle.ResultUnreadable} {
			total.WithLabelValues(operation, string(result))
		}
	}
	registerer.MustRegister(total)
	return &Injections{total}
}

// Count counts a call.
func (i *Injections) Count(operation string, result lifecycle.Result) {
	i.total.WithLabelValues(operation, string(result)).Inc()
}
