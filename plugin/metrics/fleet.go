package metrics

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// collectTimeout bounds a scrape, which reads only from the informers.
const collectTimeout = 5 * time.Second

// States of a cluster.
const (
	stateDisabled    = "disabled"
	stateObserved    = "observed"
	stateAwake       = "awake"
	stateHibernating = "hibernating"
	stateDozing      = "dozing"
	stateAsleep      = "asleep"
)

// states are the values of the label state.
var states = []*dto.LabelPair{
	label(labelState, stateDisabled), label(labelState, stateObserved), label(labelState, stateAwake), label(labelState, stateHibernating),
	label(labelState, stateDozing), label(labelState, stateAsleep),
}

// resultSuccess and resultTimeout are values of the label result.
var resultSuccess, resultTimeout = label(labelResult, string(waker.ResultSuccess)), label(labelResult, string(waker.ResultTimeout))

// noSidecar stands for the image in a pod without a sidecar.
const noSidecar = "none"

// Sources provide the data of the clusters' series, all from the informers.
type Sources struct {
	// Informers reads the Clusters and the ScheduledBackups.
	Informers client.Reader
	// Instances returns a cluster's pods; nil if the wake gateway is off, because then no pods are watched.
	Instances func(context.Context, types.NamespacedName) ([]corev1.Pod, error)
	// Unrouted counts the sleeping cluster's Services that are not routed to the wake gateway; nil if that is off.
	Unrouted func(types.NamespacedName) int
	// LastBackup returns when the sleeping cluster's last Backup was completed, or the cluster was created, zero if that
	// is unknown; nil if the wake gateway is off.
	LastBackup func(types.NamespacedName) time.Time
	// Wakes are the wake gateway's metrics; nil if that is off.
	Wakes *Wake
	// Sidecars are the resource requests of a cluster's sidecars while it is awake.
	Sidecars cnpgi.Sidecars
	// Now is the clock.
	Now func() time.Time
}

// Fleet computes the series of every cluster that lists the plugin anew at each scrape: those of a deleted cluster
// disappear with it.
type Fleet struct {
	sources      Sources
	described    fleetDescriptions
	descriptions []*prometheus.Desc // all of them

	mutex  sync.Mutex // scrapes may overlap
	ledger ledger
}

type fleetDescriptions struct {
	state, since, slept, dozed, cpu, memory, sidecarCPU, sidecarMemory, invalid, onConnect, woken, wakes, unrouted, unreconciled, suspended, pods, backup, maxAge *prometheus.Desc
}

// NewFleet makes the collector. Its counters start now.
func NewFleet(sources Sources) *Fleet {
	f := &Fleet{sources: sources, ledger: newLedger(sources.Now())}
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		description := prometheus.NewDesc(prefix+name, help, append([]string{labelNamespace, labelCluster}, labels...), nil)
		f.descriptions = append(f.descriptions, description)
		return description
	}
	f.described = fleetDescriptions{
		state:  describe("cluster_state", "State of the cluster: 1 for the current state.", labelState),
		since:  describe("asleep_since_timestamp_seconds", "When the last pod of the sleeping cluster was gone; absent while it is awake."),
		slept:  describe("hibernated_seconds_total", "For how long this process has known the cluster to be asleep."),
		dozed:  describe("dozing_seconds_total", "For how long this process has known the cluster to doze: PostgreSQL was stopped, and its pod was kept."),
		cpu:    describe("saved_cpu_seconds_total", "CPU that the cluster's PostgreSQL containers did not request while it slept, multiplied by the time asleep; absent where they request none."),
		memory: describe("saved_memory_byte_seconds_total", "Memory that the cluster's PostgreSQL containers did not request while it slept, multiplied by the time asleep; absent where they request none."),
		sidecarCPU: describe("sidecar_cpu_seconds_total",
			"CPU requests of the cluster's sidecars, by the plugin's settings, multiplied by the time awake: subtract it from saved_cpu_seconds_total."),
		sidecarMemory: describe("sidecar_memory_byte_seconds_total",
			"Memory requests of the cluster's sidecars, by the plugin's settings, multiplied by the time awake: subtract it from saved_memory_byte_seconds_total."),
		invalid:   describe("settings_invalid", "How many annotations of the cluster are invalid."),
		onConnect: describe("wakes_on_connect", "Whether a connection would wake the cluster, by its settings and by who put it to sleep."),
		woken:     describe("last_wake_timestamp_seconds", "When a connection last woke the cluster; absent if the last wake had another cause."),
		wakes: describe("cluster_wakes_total", "Wakes of the cluster that this process carried out, by result: two series for each cluster, which disappear with it.",
			labelResult),
		unrouted: describe("unrouted_services",
			"Services of the sleeping cluster that are not, or not fully, routed to the wake gateway although their clients should wake it; absent while it is awake."),
		unreconciled: describe("reconciliation_blocked",
			"Whether the operator reports that it cannot reconcile the cluster because it cannot call this plugin, or a call failed; 0 while the cluster is hibernated or dozes."),
		suspended: describe("suspended_schedules", "ScheduledBackups of the cluster that are suspended because it sleeps."),
		backup: describe("last_backup_timestamp_seconds",
			"When the last Backup of the sleeping cluster was completed, or the cluster was created if none was; absent "+
				"while it is awake, while unknown, and where nothing limits the age of Backups."),
		maxAge: describe("backup_max_age_seconds",
			"How old the last Backup of the sleeping cluster may become, by the annotation backup-max-age or else by the Cluster's "+
				"retention policy; absent where last_backup_timestamp_seconds is."),
		pods: describe("instance_pods", "Pods of the cluster's instances, by the image of their sidecar; none: they have no sidecar.", labelImage),
	}
	return f
}

// Describe sends the descriptions.
func (f *Fleet) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range f.descriptions {
		descriptions <- description
	}
}

// Collect sends the series of every cluster. A source that cannot be read yields no series.
func (f *Fleet) Collect(metrics chan<- prometheus.Metric) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var clusters cnpgv1.ClusterList
	if err := f.sources.Informers.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	suspended := f.suspended(ctx)
	now := f.sources.Now()
	listed := map[types.NamespacedName]bool{}
	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if !plan.Lists(cluster) {
			continue
		}
		send := sender(metrics, cluster)
		name := client.ObjectKeyFromObject(cluster)
		listed[name] = true
		view := plan.View(cluster, now)
		f.sendState(send, cluster, view)
		var dozing time.Time
		if view.Dozing {
			dozing, _ = time.Parse(time.RFC3339, cluster.Annotations[contract.AnnotationDozingSince]) // zero if a person wrote something else
		}
		f.sendSleep(send, f.ledger.book(cluster, dozing, f.sources.Sidecars.Of(cluster), now))
		f.sendWake(send, cluster)
		f.sendWakes(send, name)
		f.sendPods(ctx, send, cluster)
		if suspended != nil {
			send(f.described.suspended, prometheus.GaugeValue, float64(suspended[name]))
		}
	}
	f.ledger.close()
	if f.sources.Wakes != nil {
		f.sources.Wakes.byCluster.keep(func(cluster types.NamespacedName) bool { return listed[cluster] })
	}
}

func (f *Fleet) sendState(send send, cluster *cnpgv1.Cluster, view plan.Cluster) {
	send(f.described.invalid, prometheus.GaugeValue, float64(view.Problems))
	in := stateOf(cluster, view)
	for _, state := range states {
		send(f.described.state, prometheus.GaugeValue, number(state.GetValue() == in), state)
	}
	onConnect := f.sources.Instances != nil && (view.Obstacle() == "" || view.Dozing && !view.Deleting)
	send(f.described.onConnect, prometheus.GaugeValue, number(onConnect))
	send(f.described.unreconciled, prometheus.GaugeValue, number(unreconciled(cluster, view)))
	if since, asleep := asleepSince(cluster); asleep {
		send(f.described.since, prometheus.GaugeValue, float64(since.Unix()))
	}
	f.sendBackup(send, cluster, view)
	if onConnect && (in == stateAsleep || in == stateDozing) {
		send(f.described.unrouted, prometheus.GaugeValue, float64(f.sources.Unrouted(client.ObjectKeyFromObject(cluster))))
	}
}

func (f *Fleet) sendBackup(send send, cluster *cnpgv1.Cluster, view plan.Cluster) {
	limit := plan.BackupLimit(cluster, view.Policy)
	if f.sources.LastBackup == nil || limit == 0 || !view.HibernationOn && !view.Dozing {
		return
	}
	if last := f.sources.LastBackup(client.ObjectKeyFromObject(cluster)); !last.IsZero() {
		send(f.described.backup, prometheus.GaugeValue, float64(last.Unix()))
		send(f.described.maxAge, prometheus.GaugeValue, limit.Seconds())
	}
}

func (f *Fleet) sendSleep(send send, a *account) {
	send(f.described.slept, prometheus.CounterValue, a.slept)
	send(f.described.dozed, prometheus.CounterValue, a.dozed)
	if a.requests.CPU > 0 {
		send(f.described.cpu, prometheus.CounterValue, a.cpu)
	}
	if a.requests.Memory > 0 {
		send(f.described.memory, prometheus.CounterValue, a.memory)
	}
	send(f.described.sidecarCPU, prometheus.CounterValue, a.sidecarCPU)
	send(f.described.sidecarMemory, prometheus.CounterValue, a.sidecarMemory)
}

// sendWake sends when a connection last woke the cluster. A wake that has no address had another cause.
func (f *Fleet) sendWake(send send, cluster *cnpgv1.Cluster) {
	wake, err := contract.ParseLastWake(cluster.Annotations[contract.AnnotationLastWake])
	if _, noAddress := netip.ParseAddr(wake.By); err == nil && noAddress == nil {
		send(f.described.woken, prometheus.GaugeValue, float64(wake.At.Unix()))
	}
}

// sendWakes sends the cluster's wakes, starting from zero, because Prometheus does not see the increase of a series
// that starts at one.
func (f *Fleet) sendWakes(send send, cluster types.NamespacedName) {
	if f.sources.Wakes == nil {
		return
	}
	counts := f.sources.Wakes.byCluster.of(cluster)
	send(f.described.wakes, prometheus.CounterValue, float64(counts.succeeded), resultSuccess)
	send(f.described.wakes, prometheus.CounterValue, float64(counts.timedOut), resultTimeout)
}

func (f *Fleet) sendPods(ctx context.Context, send send, cluster *cnpgv1.Cluster) {
	if f.sources.Instances == nil {
		return
	}
	pods, err := f.sources.Instances(ctx, client.ObjectKeyFromObject(cluster))
	if err != nil {
		return
	}
	images := map[string]int{}
	for i := range pods {
		images[cmp.Or(cnpgi.SidecarImage(&pods[i]), noSidecar)]++
	}
	for image, count := range images {
		send(f.described.pods, prometheus.GaugeValue, float64(count), label(labelImage, image))
	}
}

// suspended counts the ScheduledBackups that carry our mark, by cluster; nil if they cannot be read.
func (f *Fleet) suspended(ctx context.Context) map[types.NamespacedName]int {
	var schedules cnpgv1.ScheduledBackupList
	if err := f.sources.Informers.List(ctx, &schedules, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	counts := map[types.NamespacedName]int{}
	for i := range schedules.Items {
		schedule := &schedules.Items[i]
		if _, marked := schedule.Annotations[contract.AnnotationSuspended]; marked && schedule.IsSuspended() {
			counts[types.NamespacedName{Namespace: schedule.Namespace, Name: schedule.Spec.Cluster.Name}]++
		}
	}
	return counts
}

// stateOf returns the state. It uses the operator's hibernation condition, because phase and readiness do not change.
func stateOf(cluster *cnpgv1.Cluster, view plan.Cluster) string {
	switch {
	case meta.IsStatusConditionTrue(cluster.Status.Conditions, contract.ConditionHibernation):
		return stateAsleep
	case cluster.Annotations[contract.AnnotationHibernation] == "on":
		return stateHibernating
	case view.Dozing:
		return stateDozing
	case view.Policy.Observed:
		return stateObserved
	case !view.Policy.Enabled:
		return stateDisabled
	default:
		return stateAwake
	}
}

// unreconciled reports whether this plugin blocks the operator's reconciliation of the cluster, according to the phase.
// Sleeping clusters are excluded: the operator does not update the phase of one that is hibernated, nor of one that
// dozes, for which this plugin ends each reconciliation before that.
func unreconciled(cluster *cnpgv1.Cluster, view plan.Cluster) bool {
	return plan.BlockedByPlugin(cluster) && !view.HibernationOn && !view.Dozing
}

func number(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}
