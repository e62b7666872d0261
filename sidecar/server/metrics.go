// Package server exposes the sidecar's state: /metrics, /activity and /healthz over HTTP, and the drain for a preStop
// hook over a Unix socket. Only /password-set, and the request of another instance for a sample, query PostgreSQL.
package server

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/control"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// prefix is the prefix of every metric.
const prefix = "cnpg_scale_to_zero_"

// Metrics observes the control loop. Unknown values are absent from the page, never zero.
type Metrics struct {
	registry      *prometheus.Registry
	samples       prometheus.Counter
	sampleErrors  prometheus.Counter
	sampleTime    prometheus.Histogram
	notifications *prometheus.CounterVec
	socketEvents  *prometheus.CounterVec
	hibernations  *prometheus.CounterVec
	dozes         *prometheus.CounterVec
	described     descriptions
	now           func() time.Time

	mutex  sync.Mutex
	status control.Status
	known  bool
}

// descriptions describe the metrics computed from the newest status.
type descriptions struct {
	idle, idleSince, lastActivity, lastSample, threshold, sessions, blocked, listener, events *prometheus.Desc
	wouldSleepTime, wouldSleep, wouldBeAsleep, observed                                       *prometheus.Desc
}

// NewMetrics makes the metrics of the cluster's instance; version is that of the program.
func NewMetrics(cluster, version string, now func() time.Time) *Metrics {
	labels := prometheus.Labels{"cluster": cluster}
	describe := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, variable, labels)
	}
	m := &Metrics{
		now:      now,
		registry: prometheus.NewRegistry(),
		samples: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "samples_total", Help: "Samples of the sessions of this instance.", ConstLabels: labels,
		}),
		sampleErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "sample_errors_total", Help: "Samples that failed and left the activity unknown.",
			ConstLabels: labels,
		}),
		sampleTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "sample_duration_seconds", Help: "How long a sample took.", ConstLabels: labels,
			Buckets: []float64{0.001, 0.005, 0.025, 0.1, 0.5, 3},
		}),
		notifications: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "notifications_total", Help: "Notifications on the control channel.", ConstLabels: labels,
		}, []string{"kind"}),
		hibernations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "hibernations_total", Help: "Attempts to hibernate the cluster.", ConstLabels: labels,
		}, []string{"result"}),
		dozes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "dozes_total", Help: "Attempts to let the cluster doze.", ConstLabels: labels,
		}, []string{"result"}),
		socketEvents: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "socket_events_total",
			Help: "TCP sessions of the server that the kernel reported as ended, by verdict.", ConstLabels: labels,
		}, []string{"verdict"}),
		described: descriptions{
			idle:         describe("idle_seconds", "For how long this instance has been proven idle; zero while a session counts."),
			idleSince:    describe("idle_since_timestamp_seconds", "Since when this instance has been proven idle; absent while a session counts, or while that is unknown."),
			lastActivity: describe("last_activity_timestamp_seconds", "When activity was last seen."),
			lastSample:   describe("last_sample_timestamp_seconds", "When the newest successful sample ended."),
			threshold:    describe("threshold_seconds", "For how long the cluster must be idle before it sleeps."),
			sessions:     describe("sessions", "Client sessions of this instance.", "state"),
			blocked:      describe("blocked", "Whether the reason keeps the cluster awake.", "reason"),
			events:       describe("socket_events_supported", "Whether the kernel reports the TCP sessions that end; if not, the instance is sampled every second."),
			wouldSleepTime: describe("would_sleep_seconds_total",
				"For how long the observed cluster would have slept, by threshold.", "threshold"),
			wouldSleep: describe("would_sleep_total", "How often the observed cluster would have slept, by threshold.", "threshold"),
			wouldBeAsleep: describe("would_be_asleep",
				"Whether the observed cluster would be asleep now at its own threshold; absent if it is not observed."),
			observed: describe("observed_seconds_total",
				"For how long the cluster has been observed, by the first reason that kept it awake.", "reason"),
			listener: describe("listener_connected", "Whether notifications on the control channel are received; absent where none are wanted."),
		},
	}
	for _, kind := range postgres.Kinds() {
		m.notifications.WithLabelValues(string(kind))
	}
	for _, verdict := range activity.Verdicts() {
		m.socketEvents.WithLabelValues(string(verdict))
	}
	for _, result := range sleep.Results() {
		m.hibernations.WithLabelValues(string(result))
		m.dozes.WithLabelValues(string(result))
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: prefix + "build_info", Help: "The version of the sidecar.",
		ConstLabels: prometheus.Labels{"cluster": cluster, "version": version},
	})
	info.Set(1)
	m.registry.MustRegister(m.samples, m.sampleErrors, m.sampleTime, m.notifications, m.socketEvents, m.hibernations,
		m.dozes, info, m)
	return m
}

// Publish sets the newest status.
func (m *Metrics) Publish(status control.Status) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.status, m.known = status, true
}

// Sampled counts a sample.
func (m *Metrics) Sampled(took time.Duration, err error) {
	m.samples.Inc()
	m.sampleTime.Observe(took.Seconds())
	if err != nil {
		m.sampleErrors.Inc()
	}
}

// Notified counts a notification.
func (m *Metrics) Notified(kind postgres.Kind) { m.notifications.WithLabelValues(string(kind)).Inc() }

// Judged counts a TCP session that ended.
func (m *Metrics) Judged(verdict activity.Verdict) {
	m.socketEvents.WithLabelValues(string(verdict)).Inc()
}

// Attempted counts an attempt to hibernate, or to doze.
func (m *Metrics) Attempted(result sleep.Result, doze bool) {
	attempts := m.hibernations
	if doze {
		attempts = m.dozes
	}
	attempts.WithLabelValues(string(result)).Inc()
}

// Describe sends the descriptions of the metrics computed from the newest status.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	d := m.described
	for _, description := range []*prometheus.Desc{d.idle, d.idleSince, d.lastActivity, d.lastSample, d.threshold, d.sessions, d.blocked, d.listener, d.events, d.wouldSleepTime, d.wouldSleep, d.wouldBeAsleep, d.observed} {
		descriptions <- description
	}
}

// Collect sends the metrics computed from the newest status.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	status, ok := m.newest()
	if !ok {
		return
	}
	send := func(description *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
	}
	switch {
	case !status.Known:
	case status.InUse:
		send(m.described.idle, 0)
	case !status.State.IdleSince.IsZero():
		send(m.described.idle, m.now().Sub(status.State.IdleSince).Seconds())
		send(m.described.idleSince, seconds(status.State.IdleSince))
	}
	if at := status.State.LastActivity; !at.IsZero() {
		send(m.described.lastActivity, seconds(at))
	}
	if at := status.SampledAt; !at.IsZero() {
		send(m.described.lastSample, seconds(at))
	}
	if status.ViewKnown && len(status.Problems) == 0 {
		send(m.described.threshold, status.Policy.Threshold.Seconds())
	}
	if status.Known {
		for state, count := range status.Tally.ByState() {
			send(m.described.sessions, float64(count), state)
		}
	}
	blocked := map[idle.Reason]float64{}
	for _, reason := range status.Decision.Blockers {
		blocked[reason] = 1
	}
	for _, reason := range idle.Reasons() {
		if reason != idle.ReasonIdle {
			send(m.described.blocked, blocked[reason], string(reason))
		}
	}
	if status.Known {
		supported := 0.0
		if status.Reported {
			supported = 1
		}
		send(m.described.events, supported)
	}
	m.collectWhatIf(metrics, status)
	if status.Listens() {
		connected := 0.0
		if status.ListenerConnected {
			connected = 1
		}
		send(m.described.listener, connected)
	}
}

// collectWhatIf sends how an observed cluster would have slept. It omits other clusters, because each hibernation
// replaces the pod and would begin new series in Prometheus.
func (m *Metrics) collectWhatIf(metrics chan<- prometheus.Metric, status control.Status) {
	r := status.WhatIf.Report()
	if r == nil || !status.Policy.Observed {
		return
	}
	send := func(description *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(description, kind, value, labels...)
	}
	sleeps := func(threshold string, s contract.ReportedSleeps) {
		send(m.described.wouldSleepTime, prometheus.CounterValue, s.Seconds, threshold)
		send(m.described.wouldSleep, prometheus.CounterValue, float64(s.Count), threshold)
	}
	for _, s := range r.Sleeps {
		sleeps(strconv.FormatFloat(s.ThresholdSeconds/60, 'f', -1, 64)+"m", s)
	}
	sleeps("own", r.Own)
	for reason, lasted := range r.AwakeSeconds {
		send(m.described.observed, prometheus.CounterValue, lasted, reason)
	}
	asleep := 0.0
	if r.Own.Since != nil {
		asleep = 1
	}
	send(m.described.wouldBeAsleep, prometheus.GaugeValue, asleep)
}

func (m *Metrics) newest() (control.Status, bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.status, m.known
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
