// Package metrics exposes what the plugin does and the state of the clusters: only the plugin can provide the series of a
// sleeping cluster.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cnpg-i/scale-to-zero/plugin/lifecycle"
)

// prefix is the prefix of every metric.
const prefix = "cnpg_scale_to_zero_"

// Injections counts the calls of the lifecycle hook.
type Injections struct{ total *prometheus.CounterVec }

// NewInjections makes the counter, preset to zero for every label combination.
func NewInjections(registerer prometheus.Registerer) *Injections {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "injections_total", Help: "Calls of the lifecycle hook, by result.",
	}, []string{"operation", "result"})
	for _, operation := range []string{"create", "evaluate"} {
		for _, result := range lifecycle.Results() {
			total.WithLabelValues(operation, string(result))
		}
	}
	registerer.MustRegister(total)
	return &Injections{total}
}

// RegisterBuildInfo registers the version of the plugin.
func RegisterBuildInfo(registerer prometheus.Registerer, version string) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "plugin_build_info", Help: "The version of the plugin.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	registerer.MustRegister(info)
}

// Count counts a call.
func (i *Injections) Count(operation string, result lifecycle.Result) {
	i.total.WithLabelValues(operation, string(result)).Inc()
}
