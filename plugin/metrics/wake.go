package metrics

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Wake holds the metrics of the wake gateway.
type Wake struct {
	wakes            *prometheus.CounterVec
	duration         *prometheus.HistogramVec
	held, spliced    prometheus.Gauge
	queued           prometheus.Gauge
	ignored, refused *prometheus.CounterVec
	phases           *prometheus.HistogramVec
	used             prometheus.Gauge
	byCluster        clusterWakes
}

var _ gateway.Observer = (*Wake)(nil)

// seconds are the buckets of clients' waits: a wake takes seconds, everything else milliseconds.
var seconds = []float64{0.001, 0.005, 0.025, 0.1, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15, 20, 30, 60, 120, 300}

// wakeSeconds are the buckets of wakes: those from a doze take tenths of a second.
var wakeSeconds = append([]float64{0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75}, seconds[5:]...)

// NewWake makes the metrics, preset to zero for every label combination. limit is the number of the gateway's ports;
// the number used is absent until it is known. timeout is how long a wake may take.
func NewWake(registerer prometheus.Registerer, limit int, timeout time.Duration) *Wake {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + name, Help: help})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	w := &Wake{
		wakes: counter("wakes_total", "Wakes of clusters, by trigger, depth of the sleep and result.", "trigger", "depth", "result"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "wake_duration_seconds",
			Help:    "How long wakes took, from the first client to PostgreSQL accepting sessions, by depth of the sleep.",
			Buckets: wakeSeconds,
		}, []string{"depth"}),
		held:    gauge("held_connections", "Connections of clients that wait for their cluster."),
		queued:  gauge("queued_wakes", "Wakes that wait because the addresses of their clients have used up their budget of wakes, or have not used the last wake."),
		spliced: gauge("spliced_connections", "Connections that go through the gateway to an instance."),
		ignored: counter("ignored_connections_total", "Connections to sleeping clusters that wake no cluster, by kind.", "reason"),
		refused: counter("refused_connections_total", "Connections that the gateway did not serve, by reason.", "reason"),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "connection_phase_seconds",
			Help:    "How long the parts of a client's wait took, for clients that got their session.",
			Buckets: seconds,
		}, []string{"phase"}),
		used:      gauge("gateway_ports_used", "Ports of the gateway that belong to a Service."),
		byCluster: clusterWakes{timeout: timeout, counts: map[types.NamespacedName]wakeCounts{}},
	}
	for _, depth := range waker.Depths() {
		w.duration.WithLabelValues(string(depth))
		for _, result := range waker.Results() {
			w.wakes.WithLabelValues(string(contract.CauseConnection), string(depth), string(result))
		}
	}
	for _, result := range []waker.Result{waker.ResultSuccess, waker.ResultTimeout} {
		for _, depth := range waker.Depths() {
			for _, cause := range []contract.Cause{
				contract.CauseBackup, contract.CauseWindow, contract.CauseRequest, contract.CauseObject,
			} {
				w.wakes.WithLabelValues(string(cause), string(depth), string(result))
			}
		}
	}
	for _, reason := range gateway.IgnoredReasons() {
		w.ignored.WithLabelValues(reason)
	}
	for _, reason := range gateway.RefusedReasons() {
		w.refused.WithLabelValues(string(reason))
	}
	for _, phase := range gateway.Phases() {
		w.phases.WithLabelValues(string(phase))
	}
	ports := gauge("gateway_ports_limit", "Ports that the gateway has.")
	ports.Set(float64(limit))
	registerer.MustRegister(w.wakes, w.duration, w.held, w.spliced, w.queued, w.ignored, w.refused, w.phases, w.used, ports)
	return w
}

// Woke counts a wake, and observes how long a client waited for a successful one.
func (w *Wake) Woke(cluster types.NamespacedName, by contract.Cause, from waker.Depth, result waker.Result, took time.Duration) {
	w.byCluster.count(cluster, result, time.Now())
	w.wakes.WithLabelValues(string(by), string(from), string(result)).Inc()
	if by == contract.CauseConnection && result == waker.ResultSuccess {
		w.duration.WithLabelValues(string(from)).Observe(took.Seconds())
	}
}

// Queued changes the number of wakes that wait for the budget.
func (w *Wake) Queued(change int) { w.queued.Add(float64(change)) }

// PortsUsed sets the number of ports assigned to Services.
func (w *Wake) PortsUsed(count int) { w.used.Set(float64(count)) }

// Held changes the number of waiting clients.
func (w *Wake) Held(_ gateway.Service, change int) { w.held.Add(float64(change)) }

// Spliced changes the number of forwarded sessions.
func (w *Wake) Spliced(_ gateway.Service, change int) { w.spliced.Add(float64(change)) }

// Ignored counts a connection that causes no wake.
func (w *Wake) Ignored(_ gateway.Service, reason string) { w.ignored.WithLabelValues(reason).Inc() }

// Refused counts a client that got no session.
func (w *Wake) Refused(_ gateway.Service, reason gateway.RefusedReason) {
	w.refused.WithLabelValues(string(reason)).Inc()
}

// Took observes one phase of a client's wait.
func (w *Wake) Took(_ gateway.Service, phase gateway.Phase, duration time.Duration) {
	w.phases.WithLabelValues(string(phase)).Observe(duration.Seconds())
}

// clusterWakes counts the wakes of each cluster. The [Fleet] shows two series for each existing cluster, one for
// successful wakes and one for those that timed out, and removes the counts of other clusters.
type clusterWakes struct {
	timeout time.Duration
	mutex   sync.Mutex
	counts  map[types.NamespacedName]wakeCounts
}

type wakeCounts struct {
	succeeded, timedOut uint64
	last                time.Time // when one timed out
}

// count counts a wake. It times out at each Service at which clients wait, and is counted once.
func (w *clusterWakes) count(cluster types.NamespacedName, result waker.Result, now time.Time) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	counts := w.counts[cluster]
	switch result {
	case waker.ResultSuccess:
		counts.succeeded++
	case waker.ResultTimeout:
		if now.Sub(counts.last) < w.timeout {
			return
		}
		counts.timedOut, counts.last = counts.timedOut+1, now
	case waker.ResultByHand, waker.ResultMaintenance:
		return // no wake was attempted
	}
	w.counts[cluster] = counts
}

func (w *clusterWakes) of(cluster types.NamespacedName) wakeCounts {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.counts[cluster]
}

// keep removes the counts of clusters that do not exist.
func (w *clusterWakes) keep(exists func(types.NamespacedName) bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	maps.DeleteFunc(w.counts, func(cluster types.NamespacedName, _ wakeCounts) bool { return !exists(cluster) })
}
