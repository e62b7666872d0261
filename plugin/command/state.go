package command

import (
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// State is in which state a cluster is. The list is closed.
type State string

// The states.
const (
	// StateDisabled says that the feature is off, or an annotation not understood.
	StateDisabled State = "disabled"
	// StateAwake says that it is awake.
	StateAwake State = "awake"
	// StateGoing says that it is about to sleep, or that hibernation is asked for and pods are left.
	StateGoing State = "going to sleep"
	// StateAsleep says that this project put it to sleep.
	StateAsleep State = "asleep"
	// StateAsleepByHand says that a person did, so that no connection wakes it.
	StateAsleepByHand State = "asleep by hand"
	// StateWaking says that hibernation is not asked for any more, and that no instance is ready yet.
	StateWaking State = "waking"
)

// wakes is for how long a new pod that is not ready yet is taken as one of a wake; then it is a failure.
const wakes = 5 * time.Minute

// seen is a Cluster with its pods.
type seen struct {
	cluster *cnpgv1.Cluster
	view    plan.Cluster
	// pods are those of the instances; podsKnown says whether they could be read.
	pods      []corev1.Pod
	podsKnown bool
}

func see(cluster *cnpgv1.Cluster, pods []corev1.Pod, podsKnown bool, now time.Time) seen {
	return seen{cluster: cluster, view: plan.View(cluster, now), pods: pods, podsKnown: podsKnown}
}

// condition is the operator's, on hibernation; nil without one.
func (s seen) condition() (reason string, since time.Time, there bool) {
	for _, condition := range s.cluster.Status.Conditions {
		if condition.Type == contract.AnnotationHibernation { // the operator names the condition like the annotation
			return condition.Reason, condition.LastTransitionTime.Time, true
		}
	}
	return "", time.Time{}, false
}

// state is that of the cluster.
func (s seen) state(now time.Time) State {
	_, _, hibernation := s.condition()
	announced, err := contract.ParseAnnouncement(s.view.Announced)
	about := false
	if err == nil {
		about, _ = announced.Valid(now)
	}
	switch {
	case s.view.Switched && s.view.Hibernated && s.view.Ours:
		return StateAsleep
	case s.view.Switched && s.view.Hibernated:
		return StateAsleepByHand
	case s.view.Switched:
		return StateGoing
	case hibernation || s.starting(now): // the operator takes its condition away when it begins to make the pods
		return StateWaking
	case s.view.Problems != 0 || !s.view.Policy.Enabled:
		return StateDisabled
	case about:
		return StateGoing
	default:
		return StateAwake
	}
}

// starting reports whether no instance is ready, and the newest pod is young enough to get there.
func (s seen) starting(now time.Time) bool {
	youngest := s.youngest()
	return youngest != nil && !slices.ContainsFunc(s.pods, ready) && now.Sub(youngest.CreationTimestamp.Time) < wakes
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

// primary is the pod of the primary; nil without one.
func (s seen) primary() *corev1.Pod {
	for i := range s.pods {
		if s.pods[i].Name == s.cluster.Status.CurrentPrimary {
			return &s.pods[i]
		}
	}
	return nil
}

// since is when the state began, as far as it is known.
func (s seen) since(state State) time.Time {
	reason, changed, _ := s.condition()
	switch state {
	case StateAsleep, StateGoing:
		if at, err := time.Parse(time.RFC3339, s.cluster.Annotations[contract.AnnotationAsleepSince]); err == nil && s.view.Ours {
			return at.UTC()
		}
		if reason == "" {
			return time.Time{}
		}
		return changed.UTC()
	case StateAsleepByHand:
		return changed.UTC()
	case StateWaking:
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

// asks reports whether there is a sidecar that knows more.
func (s seen) asks(state State) bool {
	return s.cluster.Status.CurrentPrimary != "" && (state == StateAwake || state == StateGoing && !s.view.Switched)
}

func (s seen) instance(pod string) instance {
	return instance{s.cluster.Namespace, s.cluster.Name, pod}
}

// ready reports whether the kubelet says so.
func ready(pod corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
