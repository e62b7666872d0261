package command

import (
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// State is the state of a cluster, one of the constants below.
type State string

// The states.
const (
	// StateNotEnrolled: the Cluster does not list the plugin.
	StateNotEnrolled State = "not enrolled"
	// StateDisabled: the feature is off, or an annotation is invalid.
	StateDisabled State = "disabled"
	// StateAwake: the cluster is awake.
	StateAwake State = "awake"
	// StateObserved: the cluster is awake, and how it would have slept is only counted.
	StateObserved State = "observed"
	// StateGoing: the cluster is about to sleep, or hibernation is requested and pods are left.
	StateGoing State = "going to sleep"
	// StateDozing: this project has stopped PostgreSQL and keeps its pod.
	StateDozing State = "dozing"
	// StateAsleep: this project put the cluster to sleep.
	StateAsleep State = "asleep"
	// StateAsleepByHand: a person put the cluster to sleep, so that no connection wakes it.
	StateAsleepByHand State = "asleep by hand"
	// StateWaking: hibernation or a doze has ended, and no instance is ready yet.
	StateWaking State = "waking"
)

// wakingLimit is how long a new pod that is not ready counts as waking; after that it counts as failed.
const wakingLimit = 5 * time.Minute

// result is what every command says of a cluster that it has changed.
type result struct {
	Namespace string `json:"namespace"`
	Cluster   string `json:"cluster"`
	State     State  `json:"state"`
}

// seen is a Cluster with its pods.
type seen struct {
	cluster *cnpgv1.Cluster
	view    plan.Cluster
	// pods are the instances' pods; podsKnown is set if they could be read.
	pods      []corev1.Pod
	podsKnown bool
	// schedules are the ScheduledBackups, if they matter.
	schedules schedules
}

// schedules are ScheduledBackups, or why they cannot be read.
type schedules struct {
	items []cnpgv1.ScheduledBackup
	err   error
}

func see(cluster *cnpgv1.Cluster, pods []corev1.Pod, podsKnown bool, now time.Time) seen {
	return seen{cluster: cluster, view: plan.View(cluster, now), pods: pods, podsKnown: podsKnown}
}

// condition returns the operator's hibernation condition, or nil.
func (s seen) condition() *metav1.Condition {
	return meta.FindStatusCondition(s.cluster.Status.Conditions, contract.ConditionHibernation)
}

// state returns the state of the cluster.
func (s seen) state(now time.Time) State {
	announced, err := contract.ParseAnnouncement(s.view.Announced)
	about := false
	if err == nil {
		about, _ = announced.Valid(now)
	}
	switch {
	case s.view.HibernationOn && s.view.Hibernated && s.view.OwnsHibernation:
		return StateAsleep
	case s.view.HibernationOn && s.view.Hibernated:
		return StateAsleepByHand
	case s.view.HibernationOn:
		return StateGoing
	case s.view.Dozing:
		return StateDozing
	case s.view.MayStillStop || !s.wokenFromDoze(now).IsZero():
		return StateWaking
	case s.condition() != nil || s.starting(now): // the operator removes the condition when it begins to create the pods
		return StateWaking
	case !s.view.Listed:
		return StateNotEnrolled
	case s.view.Problems != 0 || !s.view.Policy.Watches():
		return StateDisabled
	case s.view.Policy.Observed:
		return StateObserved
	case about:
		return StateGoing
	default:
		return StateAwake
	}
}

// starting reports whether no instance is ready and the newest pod is younger than wakes.
func (s seen) starting(now time.Time) bool {
	youngest := s.youngest()
	return youngest != nil && !slices.ContainsFunc(s.pods, ready) && now.Sub(youngest.CreationTimestamp.Time) < wakingLimit
}

func (s seen) youngest() *corev1.Pod {
	var youngest *corev1.Pod
	for i := range s.pods {
		if youngest == nil || s.pods[i].CreationTimestamp.After(youngest.CreationTimestamp.Time) {
			youngest = &s.pods[i]
		}
	}
	return youngest
}

// primary returns the pod of the primary, or nil.
func (s seen) primary() *corev1.Pod {
	for i := range s.pods {
		if s.pods[i].Name == s.cluster.Status.CurrentPrimary {
			return &s.pods[i]
		}
	}
	return nil
}

// since returns when the state began, or zero if unknown.
func (s seen) since(state State, now time.Time) time.Time {
	var changed time.Time
	if condition := s.condition(); condition != nil {
		changed = condition.LastTransitionTime.UTC()
	}
	switch state {
	case StateAsleep, StateGoing:
		if at, err := time.Parse(time.RFC3339, s.cluster.Annotations[contract.AnnotationAsleepSince]); err == nil &&
			s.view.OwnsHibernation {
			return at.UTC()
		}
		return changed
	case StateAsleepByHand:
		return changed
	case StateDozing:
		return s.dozingSince()
	case StateWaking:
		if at := s.wokenFromDoze(now); !at.IsZero() {
			return at
		}
		if youngest := s.youngest(); youngest != nil {
			return youngest.CreationTimestamp.UTC()
		}
	case StateAwake, StateObserved:
		if primary := s.primary(); primary != nil {
			return primary.CreationTimestamp.UTC()
		}
	case StateDisabled, StateNotEnrolled:
	}
	return time.Time{}
}

// asks reports whether there is a sidecar to ask.
func (s seen) asks(state State) bool {
	return s.cluster.Status.CurrentPrimary != "" &&
		(state == StateAwake || state == StateObserved || state == StateGoing && !s.view.HibernationOn)
}

func (s seen) instance(pod string) instance {
	return instance{s.cluster.Namespace, s.cluster.Name, pod}
}

// ready reports whether the pod is ready and not being deleted.
func ready(pod corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// dozes reports whether the annotations say that the cluster is to doze.
func (s seen) dozes() bool {
	return s.view.Problems == 0 && s.view.Policy.Enabled && s.view.Policy.Doze != 0
}

// dozingSince returns when the cluster was fenced for its doze; zero if no annotation says so.
func (s seen) dozingSince() time.Time {
	// Zero if a person wrote something else.
	at, _ := time.Parse(time.RFC3339, s.cluster.Annotations[contract.AnnotationDozingSince])
	return at.UTC()
}

// hibernatesAt returns when the dozing cluster will hibernate if nothing happens; zero if no annotation says so.
func (s seen) hibernatesAt() time.Time {
	since := s.dozingSince()
	if since.IsZero() || !s.dozes() {
		return time.Time{}
	}
	return since.Add(s.view.Policy.Threshold - s.view.Policy.Doze)
}

// wokenFromDoze returns when a client ended the doze of a cluster whose pod is not ready again yet, or zero.
func (s seen) wokenFromDoze(now time.Time) time.Time {
	wake, err := contract.ParseLastWake(s.cluster.Annotations[contract.AnnotationLastWake])
	if err != nil || wake.Depth != contract.DepthDoze || now.Sub(wake.At) >= wakingLimit || !s.podsKnown ||
		slices.ContainsFunc(s.pods, ready) {
		return time.Time{}
	}
	return wake.At
}

// dozeBlockers returns the reasons against a doze that can be seen from the pod, without asking the sidecar: it may not
// answer, or be too old to know the feature.
func (s seen) dozeBlockers() []string {
	primary := s.primary()
	if !s.dozes() || primary == nil || slices.ContainsFunc(primary.Spec.Containers, withdrawsReadiness) {
		return nil
	}
	return []string{string(idle.ReasonPodMadeBefore)}
}

// withdrawsReadiness reports whether the container is a sidecar that has the readiness probe.
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
func (s seen) saved(state State, now time.Time) saved {
	condition := s.condition()
	if state != StateAsleep || condition == nil || condition.LastTransitionTime.IsZero() {
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
	sum := plan.RequestsOf(s.cluster)
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
