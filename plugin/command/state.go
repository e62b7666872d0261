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
)

// result is what every command says of a cluster.
type result struct {
	Namespace string             `json:"namespace"`
	Cluster   string             `json:"cluster"`
	State     clusterstate.State `json:"state"`
}

// seen is a Cluster with its pods.
type seen struct {
	clusterstate.Seen
	// schedules are the ScheduledBackups, if they matter; unscheduled is why they cannot be read.
	schedules   []cnpgv1.ScheduledBackup
	unscheduled error
}

func see(cluster *cnpgv1.Cluster, pods []corev1.Pod, podsKnown bool, now time.Time) seen {
	return seen{Seen: clusterstate.See(cluster, pods, podsKnown, now)}
}

func (s seen) result(now time.Time) result {
	return result{s.Cluster.Namespace, s.Cluster.Name, s.State(now)}
}

func (r result) says(what string) string {
	return fmt.Sprintf("Cluster %s/%s %s.\n", r.Namespace, r.Cluster, what)
}

// since returns when the state began, or zero if unknown.
func (s seen) since(state clusterstate.State, now time.Time) time.Time {
	switch state {
	case clusterstate.Asleep, clusterstate.Going, clusterstate.AsleepByHand:
		at, err := time.Parse(time.RFC3339, s.Cluster.Annotations[contract.AnnotationAsleepSince])
		if err == nil && s.View.OwnsHibernation {
			return at.UTC()
		}
		if condition := s.Condition(); condition != nil {
			return condition.LastTransitionTime.UTC()
		}
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

// pluginContainer is the container of the plugin, an init container if it runs in the operator's pod, and container that
// of the sidecar.
const pluginContainer, container = "cnpg-i-scale-to-zero", "scale-to-zero"

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

// withdrawsReadiness reports whether the container is a sidecar that has the readiness probe that a doze needs.
func withdrawsReadiness(c corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == contract.EnvReadinessPort })
}

// saved is what the current sleep has saved so far. The plugin's counters of the same names increase at the same rate,
// but their values depend on how long the plugin has run, and only the plugin knows them. A resource that is not
// requested is absent.
type saved struct {
	CPUSeconds        *float64 `json:"savedCPUSeconds,omitempty"`
	MemoryByteSeconds *float64 `json:"savedMemoryByteSeconds,omitempty"`
}

// saved counts from when no pod was left, by the operator's condition: until then the requests were still held.
func (s seen) saved(state clusterstate.State, now time.Time) (saves saved) {
	condition := s.Condition()
	if state != clusterstate.Asleep || condition == nil || condition.LastTransitionTime.IsZero() {
		return saves
	}
	slept := max(now.Sub(condition.LastTransitionTime.Time).Seconds(), 0) // the condition's time is from another clock
	sum := plan.RequestsOf(s.Cluster)
	if sum.CPU > 0 {
		saves.CPUSeconds = new(sum.CPU * slept)
	}
	if sum.Memory > 0 {
		saves.MemoryByteSeconds = new(sum.Memory * slept)
	}
	return saves
}

// hoursOf formats savings, of which cpuHour is one CPU hour and gibHour one GiB hour, with one decimal, or two below
// one.
func hoursOf(cpu, memory *float64, cpuHour, gibHour float64) string {
	var parts []string
	add := func(total *float64, hour float64, name string) {
		if total == nil {
			return
		}
		switch number := *total / hour; {
		case number < 0.01:
			parts = append(parts, "<0.01 "+name)
		case number < 1:
			parts = append(parts, fmt.Sprintf("%.2f %s", number, name))
		default:
			parts = append(parts, fmt.Sprintf("%.1f %s", number, name))
		}
	}
	add(cpu, cpuHour, "CPU·h")
	add(memory, gibHour, "GiB·h")
	return strings.Join(parts, ", ")
}

func (s saved) hours() string {
	return hoursOf(s.CPUSeconds, s.MemoryByteSeconds, time.Hour.Seconds(), time.Hour.Seconds()*(1<<30))
}
