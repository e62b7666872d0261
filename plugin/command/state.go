package command

import (
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// State is the state of a cluster, one of the constants below.
type State string

// The states.
const (
	// StateDisabled: the feature is off, or an annotation is invalid.
	StateDisabled State = "disabled"
	// StateAwake: the cluster is awake.
	StateAwake State = "awake"
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
}

func see(cluster *cnpgv1.Cluster, pods []corev1.Pod, podsKnown bool, now time.Time) seen {
	return seen{cluster: cluster, view: plan.View(cluster, now), pods: pods, podsKnown: podsKnown}
}

// condition returns the reason and time of the operator's hibernation condition.
func (s seen) condition() (reason string, since time.Time, there bool) {
	for _, condition := range s.cluster.Status.Conditions {
		if condition.Type == contract.AnnotationHibernation { // the operator names the condition like the annotation
			return condition.Reason, condition.LastTransitionTime.Time, true
		}
	}
	return "", time.Time{}, false
}

// state returns the state of the cluster.
func (s seen) state(now time.Time) State {
	_, _, hibernation := s.condition()
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
	case hibernation || s.starting(now): // the operator removes the condition when it begins to create the pods
		return StateWaking
	case s.view.Problems != 0 || !s.view.Policy.Enabled:
		return StateDisabled
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
	reason, changed, _ := s.condition()
	switch state {
	case StateAsleep, StateGoing:
		if at, err := time.Parse(time.RFC3339, s.cluster.Annotations[contract.AnnotationAsleepSince]); err == nil && s.view.OwnsHibernation {
			return at.UTC()
		}
		if reason == "" {
			return time.Time{}
		}
		return changed.UTC()
	case StateAsleepByHand:
		return changed.UTC()
	case StateDozing:
		return s.dozingSince()
	case StateWaking:
		if at := s.wokenFromDoze(now); !at.IsZero() {
			return at
		}
		if youngest := s.youngest(); youngest != nil {
			return youngest.CreationTimestamp.UTC()
		}
	case StateAwake:
		if primary := s.primary(); primary != nil {
			return primary.CreationTimestamp.UTC()
		}
	case StateDisabled:
	}
	return time.Time{}
}

// asks reports whether there is a sidecar to ask.
func (s seen) asks(state State) bool {
	return s.cluster.Status.CurrentPrimary != "" && (state == StateAwake || state == StateGoing && !s.view.HibernationOn)
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
