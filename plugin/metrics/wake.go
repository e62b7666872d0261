package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

// triggerConnection is what wakes clusters by this plugin: a client's connection.
const triggerConnection = "connection"

// Wake shows what the wake gateway does.
type Wake struct {
	wakes            *prometheus.CounterVec
	duration         prometheus.Histogram
	held, spliced    prometheus.Gauge
	ignored, refused *prometheus.CounterVec
	used             prometheus.Gauge
}

// NewWake makes the metrics, preset to zero for everything that can happen. limit is how many ports the gateway has; how many
// are used is not shown before it is known.
func NewWake(registerer prometheus.Registerer, limit int) *Wake {
	w := &Wake{
		wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "wakes_total", Help: "Wakes that clients asked for, by what began them and how they ended.",
		}, []string{"trigger", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "wake_duration_seconds", Help: "How long wakes took, from the first client to PostgreSQL accepting sessions.",
			Buckets: []float64{1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 20, 30, 60, 120, 300},
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "held_connections", Help: "Connections of clients that wait for their cluster.",
		}),
		spliced: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "spliced_connections", Help: "Connections that go through the gateway to an instance.",
		}),
		ignored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "ignored_connections_total", Help: "Connections to sleeping clusters that wake nobody, by what they are.",
		}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "refused_connections_total", Help: "Connections that the gateway did not serve, by why.",
		}, []string{"reason"}),
		used: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "gateway_ports_used", Help: "Ports of the gateway that belong to a Service.",
		}),
	}
	for _, result := range []waker.Result{waker.ResultSuccess, waker.ResultTimeout, waker.ResultByHand} {
		w.wakes.WithLabelValues(triggerConnection, string(result))
	}
	for _, reason := range []gateway.Refusal{gateway.RefusalIgnored, gateway.RefusalInstance} {
		w.ignored.WithLabelValues(string(reason))
	}
	w.refused.WithLabelValues(string(gateway.RefusalNotAllowed))
	ports := prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "gateway_ports_limit", Help: "Ports that the gateway has."})
	ports.Set(float64(limit))
	registerer.MustRegister(w.wakes, w.duration, w.held, w.spliced, w.ignored, w.refused, w.used, ports)
	return w
}

// Woke counts a wake; the time counts for those that came to an end.
func (w *Wake) Woke(result waker.Result, took time.Duration) {
	w.wakes.WithLabelValues(triggerConnection, string(result)).Inc()
	if result == waker.ResultSuccess {
		w.duration.Observe(took.Seconds())
	}
}

// PortsUsed shows how many ports belong to a Service.
func (w *Wake) PortsUsed(count int) { w.used.Set(float64(count)) }

// Held counts connections that wait, by how many there are more or less.
func (w *Wake) Held(change int) { w.held.Add(float64(change)) }

// Spliced counts connections that go through, by how many there are more or less.
func (w *Wake) Spliced(change int) { w.spliced.Add(float64(change)) }

// Ignored counts a connection that wakes nobody.
func (w *Wake) Ignored(reason string) { w.ignored.WithLabelValues(reason).Inc() }

// Refused counts a connection that was not served.
func (w *Wake) Refused(reason string) { w.refused.WithLabelValues(reason).Inc() }
