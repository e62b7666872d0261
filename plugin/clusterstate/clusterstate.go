// Package clusterstate names the state of a cluster for the command line and the wake endpoint.
package clusterstate

import (
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// State is the state of a cluster, one of the constants below.
type State string

// The states.
const (
	// NotEnrolled: the Cluster does not list the plugin.
	NotEnrolled State = "not enrolled"
	// Disabled: the feature is off, or an annotation is invalid.
	Disabled State = "disabled"
	// Awake: none of the other states. An instance need not be ready.
	Awake State = "awake"
	// Observed: the cluster is awake, and how it would have slept is only counted.
	Observed State = "observed"
	// Going: the cluster is about to sleep, or hibernation is requested and pods are left.
	Going State = "going to sleep"
	// Dozing: this project has stopped PostgreSQL and keeps its pod.
	Dozing State = "dozing"
	// Asleep: this project put the cluster to sleep.
	Asleep State = "asleep"
	// AsleepByHand: a person put the cluster to sleep, so that no connection wakes it.
	AsleepByHand State = "asleep by hand"
	// Waking: no instance is ready yet after hibernation, a doze, or a pod's creation within wakingLimit.
	Waking State = "waking"
)

// wakingLimit is how long a new pod that is not ready counts as waking; after that it counts as failed.
const wakingLimit = 5 * time.Minute

// Seen is a Cluster with its pods.
type Seen struct {
	Cluster *cnpgv1.Cluster
	View    plan.Cluster
	// Pods are the instances' pods; PodsKnown is set if they could be read.
	Pods      []corev1.Pod
	PodsKnown bool
}

// See reads a Cluster.
func See(cluster *cnpgv1.Cluster, pods []corev1.Pod, podsKnown bool, now time.Time) Seen {
	return Seen{Cluster: cluster, View: plan.View(cluster, now), Pods: pods, PodsKnown: podsKnown}
}

// State returns the state of the cluster.
func (s Seen) State(now time.Time) State {
	announced, err := contract.ParseAnnouncement(s.View.Announced)
	about := false
	if err == nil {
		about, _ = announced.Valid(now)
	}
	switch {
	case s.View.HibernationOn && s.View.Hibernated && s.View.OwnsHibernation:
		return Asleep
	case s.View.HibernationOn && s.View.Hibernated:
		return AsleepByHand
	case s.View.HibernationOn:
		return Going
	case s.View.Dozing:
		return Dozing
	case s.View.MayStillStop || !s.WokenFromDoze(now).IsZero():
		return Waking
	case s.Condition() != nil || s.starting(now): // the operator removes the condition when it begins to create the pods
		return Waking
	case !s.View.Listed:
		return NotEnrolled
	case s.View.Problems != 0 || !s.View.Policy.Watches():
		return Disabled
	case s.View.Policy.Observed:
		return Observed
	case about:
		return Going
	default:
		return Awake
	}
}

// starting reports whether no instance is ready and the newest pod is younger than wakingLimit.
func (s Seen) starting(now time.Time) bool {
	youngest := s.Youngest()
	return youngest != nil && !slices.ContainsFunc(s.Pods, Ready) && now.Sub(youngest.CreationTimestamp.Time) < wakingLimit
}

// WokenFromDoze returns when a client ended the doze of a cluster whose pod is not ready again yet, or zero.
func (s Seen) WokenFromDoze(now time.Time) time.Time {
	wake, err := contract.ParseLastWake(s.Cluster.Annotations[contract.AnnotationLastWake])
	if err != nil || wake.Depth != contract.DepthDoze || now.Sub(wake.At) >= wakingLimit || !s.PodsKnown ||
		slices.ContainsFunc(s.Pods, Ready) {
		return time.Time{}
	}
	return wake.At
}

// DozingSince returns when the cluster was fenced for its doze; zero if no annotation says so.
func (s Seen) DozingSince() time.Time {
	// Zero if a person wrote something else.
	at, _ := time.Parse(time.RFC3339, s.Cluster.Annotations[contract.AnnotationDozingSince])
	return at.UTC()
}

// Condition returns the operator's hibernation condition, or nil.
func (s Seen) Condition() *metav1.Condition {
	return meta.FindStatusCondition(s.Cluster.Status.Conditions, contract.ConditionHibernation)
}

// Youngest returns the newest pod, or nil.
func (s Seen) Youngest() *corev1.Pod {
	var youngest *corev1.Pod
	for i := range s.Pods {
		if youngest == nil || s.Pods[i].CreationTimestamp.After(youngest.CreationTimestamp.Time) {
			youngest = &s.Pods[i]
		}
	}
	return youngest
}

// Primary returns the pod of the primary, or nil.
func (s Seen) Primary() *corev1.Pod {
	for i := range s.Pods {
		if s.Pods[i].Name == s.Cluster.Status.CurrentPrimary {
			return &s.Pods[i]
		}
	}
	return nil
}

// PrimaryReady reports whether the primary is ready to serve.
func (s Seen) PrimaryReady() bool {
	primary := s.Primary()
	return !s.View.HibernationOn && !s.View.Dozing && !s.View.MayStillStop && s.Condition() == nil &&
		primary != nil && Ready(*primary)
}

// Ready reports whether the pod is ready and not being deleted.
func Ready(pod corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Progress describes the progress of a cluster whose hibernation is no longer requested.
func (s Seen) Progress() string {
	primary := s.Primary()
	switch {
	case primary == nil:
		return "The operator has not created the pod of the primary yet."
	case !primary.DeletionTimestamp.IsZero():
		return fmt.Sprintf("The pod %s is being deleted.", primary.Name)
	case primary.Spec.NodeName == "":
		return fmt.Sprintf("The pod %s waits for a node.", primary.Name)
	case primary.Status.Phase == corev1.PodPending:
		return fmt.Sprintf("The pod %s starts its containers.", primary.Name)
	default:
		return fmt.Sprintf("The pod %s runs; PostgreSQL is not ready yet.", primary.Name)
	}
}
