package metrics

import (
	"slices"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Labels of the per-cluster series. A metric's labels must be sorted by name, so a series' further labels must sort
// after cluster and namespace.
const (
	labelCluster   = "cluster"
	labelNamespace = "namespace"
	labelResult    = "result"
	labelImage     = "sidecar_image"
	labelState     = "state"
)

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// figure is a series of one scrape. A cluster has a dozen, and those of the whole fleet are in memory at once: they
// share their labels, which the library's own metrics would copy.
type figure struct {
	description *prometheus.Desc
	kind        prometheus.ValueType
	value       float64
	labels      []*dto.LabelPair
}

// Desc returns the description.
func (f *figure) Desc() *prometheus.Desc { return f.description }

// Write writes the series.
func (f *figure) Write(into *dto.Metric) error {
	into.Label = f.labels
	if f.kind == prometheus.CounterValue {
		into.Counter = &dto.Counter{Value: &f.value}
	} else {
		into.Gauge = &dto.Gauge{Value: &f.value}
	}
	return nil
}

// send sends a metric of a cluster, optionally with further labels.
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
