package metrics

import (
	"slices"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Labels of the clusters' series. Those that a series has besides the cluster and the namespace come after them in the alphabet,
// which is the order of a metric's labels; but for labelBy, of which a cluster has one, and the library puts that in its place.
const (
	labelBy        = "by"
	labelCluster   = "cluster"
	labelNamespace = "namespace"
	labelResult    = "result"
	labelImage     = "sidecar_image"
	labelState     = "state"
)

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// figure is a series at a scrape. A cluster has a dozen, and all of a fleet's are in memory at once: they share their labels, of which
// the library's own metrics have a copy each.
type figure struct {
	description *prometheus.Desc
	kind        prometheus.ValueType
	value       float64
	labels      []*dto.LabelPair
}

var _ prometheus.Metric = (*figure)(nil)

// Desc returns the description.
func (f *figure) Desc() *prometheus.Desc { return f.description }

// Write shows the series.
func (f *figure) Write(into *dto.Metric) error {
	into.Label = f.labels
	if f.kind == prometheus.CounterValue {
		into.Counter = &dto.Counter{Value: &f.value}
	} else {
		into.Gauge = &dto.Gauge{Value: &f.value}
	}
	return nil
}

// send sends a figure of a cluster, which may have a label besides.
type send func(description *prometheus.Desc, kind prometheus.ValueType, value float64, besides ...*dto.LabelPair)

func sender(metrics chan<- prometheus.Metric, cluster *cnpgv1.Cluster) send {
	of := []*dto.LabelPair{label(labelCluster, cluster.Name), label(labelNamespace, cluster.Namespace)}
	return func(description *prometheus.Desc, kind prometheus.ValueType, value float64, besides ...*dto.LabelPair) {
		labels := of
		if len(besides) > 0 {
			labels = slices.Concat(of, besides)
		}
		metrics <- &figure{description: description, kind: kind, value: value, labels: labels}
	}
}
