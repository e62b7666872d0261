package command

import (
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// result is what every command says of a cluster that it has changed.
type result struct {
	Namespace string             `json:"namespace"`
	Cluster   string             `json:"cluster"`
	State     clusterstate.State `json:"state"`
}

// since returns when the state began, or zero if unknown.
func (s seen) since(state clusterstate.State, now time.Time) time.Time {
	var changed time.Time
	if condition := s.Condition(); condition != nil {
		changed = condition.LastTransitionTime.UTC()
	}
	switch state {
	case clusterstate.Asleep, clusterstate.Going:
		if at, err := time.Parse(time.RFC3339, s.Cluster.Annotations[contract.AnnotationAsleepSince]); err == nil &&
			s.View.OwnsHibernation {
			return at.UTC()
		}
		return changed
	case clusterstate.AsleepByHand:
		return changed
	case clusterstate.Dozing:
		return s.DozingSince()
	case clusterstate.Waking:
		if at := s.WokenFromDoze(now); !at.IsZero() {
			return at
		}
		if youngest := s.Youngest(); youngest != nil {
			return youngest.CreationTimestamp.UTC()
		}
	case clusterstate.Awake, clusterstate.Observed:
		if primary := s.Primary(); primary != nil {
			return primary.CreationTimestamp.UTC()
		}
	case clusterstate.Disabled, clusterstate.NotEnrolled:
	}
	return time.Time{}
}

// asks reports whether there is a sidecar to ask.
func (s seen) asks(state clusterstate.State) bool {
	return s.Cluster.Status.CurrentPrimary != "" &&
		(state == clusterstate.Awake || state == clusterstate.Observed || state == clusterstate.Going && !s.View.HibernationOn)
}

func (s seen) instance(pod string) instance {
	return instance{s.Cluster.Namespace, s.Cluster.Name, pod}
}

// pluginContainer returns the plugin's container, which is an init container in the operator's pod, or nil.
func pluginContainer(pod *corev1.PodSpec) *corev1.Container {
	return named(pod, "cnpg-i-scale-to-zero")
}

func sidecarOf(pod *corev1.Pod) *corev1.Container { return named(&pod.Spec, container) }

// named returns the container of that name, or nil.
func named(pod *corev1.PodSpec, name string) *corev1.Container {
	all := slices.Concat(pod.InitContainers, pod.Containers)
	if at := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name }); at >= 0 {
		return &all[at]
	}
	return nil
}

// dozes reports whether the annotations say that the cluster is to doze.
func (s seen) dozes() bool {
	return s.View.Problems == 0 && s.View.Policy.Enabled && s.View.Policy.Doze != 0
}

// hibernatesAt returns when the dozing cluster will hibernate if nothing happens; zero if no annotation says so.
func (s seen) hibernatesAt() time.Time {
	since := s.DozingSince()
	if since.IsZero() || !s.dozes() {
		return time.Time{}
	}
	return since.Add(s.View.Policy.Threshold - s.View.Policy.Doze)
}

// dozeBlockers returns the reasons against a doze that can be seen from the pod, without asking the sidecar: it may not
// answer, or be too old to know the feature.
func (s seen) dozeBlockers() []string {
	primary := s.Primary()
	if !s.dozes() || primary == nil || slices.ContainsFunc(primary.Spec.Containers, withdrawsReadiness) {
		return nil
	}
	return []string{string(idle.ReasonPodMadeBefore)}
}

// withdrawsReadiness reports whether the container is a sidecar that has the readiness probe.
func withdrawsReadiness(c corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == contract.EnvReadinessPort })
}

// seen is a Cluster with its pods.
type seen struct {
	clusterstate.Seen
	// schedules are the ScheduledBackups, if they matter.
	schedules schedules
}

// schedules are ScheduledBackups, or why they cannot be read.
type schedules struct {
	items []cnpgv1.ScheduledBackup
	err   error
}

func see(cluster *cnpgv1.Cluster, pods []corev1.Pod, podsKnown bool, now time.Time) seen {
	return seen{Seen: clusterstate.See(cluster, pods, podsKnown, now)}
}

// saved is what the current sleep has saved so far. The plugin's counters of the same names increase at the same rate,
// but their values depend on how long the plugin has run, and only the plugin knows them. A resource that is not
// requested is absent.
type saved struct {
	CPUSeconds        *float64 `json:"savedCPUSeconds,omitempty"`
	MemoryByteSeconds *float64 `json:"savedMemoryByteSeconds,omitempty"`
}

// saved counts from when no pod was left, by the operator's condition: until then the requests were still held.
func (s seen) saved(state clusterstate.State, now time.Time) saved {
	condition := s.Condition()
	if state != clusterstate.Asleep || condition == nil || condition.LastTransitionTime.IsZero() {
		return saved{}
	}
	slept := max(now.Sub(condition.LastTransitionTime.Time).Seconds(), 0) // the condition's time is from another clock
	of := func(request float64) *float64 {
		if request <= 0 {
			return nil
		}
		total := request * slept
		return &total
	}
	sum := plan.RequestsOf(s.Cluster)
	return saved{CPUSeconds: of(sum.CPU), MemoryByteSeconds: of(sum.Memory)}
}

// hours formats the savings.
func hours(s saved) string {
	var parts []string
	add := func(total *float64, unit float64, name string) {
		if total != nil {
			parts = append(parts, amount(*total/unit)+" "+name)
		}
	}
	add(s.CPUSeconds, time.Hour.Seconds(), "CPU·h")
	add(s.MemoryByteSeconds, time.Hour.Seconds()*(1<<30), "GiB·h")
	return strings.Join(parts, ", ")
}

// amount has one decimal, or two below one.
func amount(value float64) string {
	switch {
	case value < 0.01:
		return "<0.01"
	case value < 1:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.1f", value)
	}
}
