package plan

import (
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/rbac"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/ownership"
)

const (
	// How the operator's condition says that it deletes the pods, that every pod is gone, and that it has not begun (1.30:
	// pkg/reconciler/hibernation).
	conditionDeletingPods      = "DeletingPods"
	conditionHibernated        = "Hibernated"
	conditionWaitingForHealthy = "WaitingForHealthy"
	on                         = "on"
)

// Cluster is what a decision needs to know of a Cluster.
type Cluster struct {
	// Listed says that the Cluster lists the plugin; Gone that it is being deleted.
	Listed, Gone bool
	// Policy is what the annotations ask for, Problems how many of them are not understood.
	Policy   idle.Policy
	Problems int
	// UnderstoodFrom is when they all will be, as nobody changes them; zero: never.
	UnderstoodFrom time.Time
	// Switched says that the hibernation switch is on, Ours that it was this project that turned it on, DeletingPods that the
	// operator wants the pods gone, Hibernated that it has deleted every pod.
	Switched, Ours, DeletingPods, Hibernated bool
	// WaitsForHealthy says that the operator does not hibernate the cluster before it is healthy.
	WaitsForHealthy bool
	// Fenced says that this project has fenced the instance. The cluster is Dozing if it is, and not hibernated besides.
	Fenced, Dozing bool
	// Stopped says that PostgreSQL was seen to have stopped since. Unsettled says that the fence was lifted before that, by a
	// person, so that PostgreSQL may yet stop.
	Stopped, Unsettled bool
	// RestartFailed is the UID of the pod in which PostgreSQL was not started again after a doze; empty where it is to be stopped:
	// fenced, by whomever, or hibernated.
	RestartFailed string
	// VolumesAtRisk says that the operator would delete the volumes of an instance that cannot be scheduled.
	VolumesAtRisk bool
	// Announced, Acknowledged and Held are the annotations' values.
	Announced, Acknowledged, Held string
	// Holding says that a doze is announced for which nobody is passed to PostgreSQL any more. It goes on after the deadline: the
	// announcement is to be withdrawn before somebody is, since the fence may be on its way.
	Holding bool
	// Leaving says that a doze was acknowledged and may go on: the pod may be not ready by now, or become so although its readiness
	// has been restored, since a probe fails before anybody learns of it.
	Leaving bool
}

// View reads a Cluster. now limits how far ahead a time in an annotation may be.
func View(cluster *cnpgv1.Cluster, now time.Time) Cluster {
	policy, problems := idle.ParsePolicy(cluster.Annotations, now)
	view := Cluster{
		Listed: rbac.Lists(cluster), Gone: !cluster.DeletionTimestamp.IsZero(), Policy: policy, Problems: len(problems),
		UnderstoodFrom: idle.UnderstoodFrom(problems),
		Switched:       cluster.Annotations[contract.AnnotationHibernation] == on,
		VolumesAtRisk:  volumesAtRisk(cluster),
		Announced:      cluster.Annotations[contract.AnnotationAnnounced], Acknowledged: cluster.Annotations[contract.AnnotationGatewayReady],
		Held: cluster.Annotations[contract.AnnotationGatewayHolding],
	}
	view.Ours = view.Switched && Owned(cluster.ManagedFields)
	view.doze(cluster, now)
	for _, condition := range cluster.Status.Conditions {
		if condition.Type == contract.AnnotationHibernation { // the operator names the condition like the annotation
			view.Hibernated = condition.Status == metav1.ConditionTrue && condition.Reason == conditionHibernated
			view.DeletingPods = condition.Reason == conditionDeletingPods
			view.WaitsForHealthy = condition.Reason == conditionWaitingForHealthy
		}
	}
	return view
}

// doze reads what a doze has left on the Cluster.
func (c *Cluster) doze(cluster *cnpgv1.Cluster, now time.Time) {
	announcement, err := contract.ParseAnnouncement(c.Announced)
	c.Holding = err == nil && announcement.Doze && c.Held == c.Announced
	valid, _ := announcement.Valid(now)
	c.Leaving = err == nil && announcement.Doze && valid && c.Acknowledged == c.Announced
	_, fenced := cluster.Annotations[contract.AnnotationFencedInstances]
	_, marked := cluster.Annotations[contract.AnnotationDozingSince]
	_, stopped := cluster.Annotations[contract.AnnotationPostgresStopped]
	c.Fenced = ownership.Dozes(cluster.Annotations, cluster.ManagedFields)
	c.Dozing = c.Fenced && !c.Switched
	c.Stopped = c.Dozing && stopped
	c.Unsettled = marked && !stopped && !fenced && !c.Switched
	if !fenced && !c.Switched {
		c.RestartFailed = cluster.Annotations[contract.AnnotationRestartFailed]
	}
}

// VolumesAtRisk says in words what puts volumes at risk, and what to do.
const VolumesAtRisk = "a node maintenance is in progress with reusePVC false, so the operator would delete the volumes of an instance " +
	"that cannot be scheduled; set spec.nodeMaintenanceWindow.inProgress to false, or reusePVC to true"

// volumesAtRisk reports whether the operator deletes the volumes of an instance that cannot be scheduled (1.30:
// processUnschedulableInstances in internal/controller/cluster_controller.go). A wake makes every pod anew, on nodes that are
// being maintained, so that all of them may be such instances at once.
func volumesAtRisk(cluster *cnpgv1.Cluster) bool {
	return cluster.IsNodeMaintenanceWindowInProgress() && !cluster.IsReusePVCEnabled()
}

// BlockedByPlugin reports whether the operator says in the phase that it does not go on with the cluster because it does not know
// this plugin, or because a call of a plugin failed. It does not say whose that was.
func BlockedByPlugin(cluster *cnpgv1.Cluster) bool {
	switch cluster.Status.Phase {
	case cnpgv1.PhaseFailurePlugin:
		return true
	case cnpgv1.PhaseUnknownPlugin:
		return strings.Contains(cluster.Status.PhaseReason, contract.PluginName)
	default:
		return false
	}
}

// Owned reports whether the hibernation annotation, as it is, was set by this project alone.
func Owned(fields []metav1.ManagedFieldsEntry) bool {
	return ownership.SetByUs(fields, "metadata", "annotations", contract.AnnotationHibernation)
}

// HoldsAll reports whether no client is passed to an instance, even one that accepts sessions: it is about to be stopped, or is.
func (c Cluster) HoldsAll() bool { return c.Switched || c.Dozing || c.Unsettled || c.Holding }

// Obstacle says why connections do not wake the cluster while it sleeps; empty: they do.
func (c Cluster) Obstacle() Reason {
	switch {
	case c.Gone:
		return ReasonGone
	case !c.Listed:
		return ReasonNotListed
	case c.Problems != 0:
		return ReasonInvalid
	case !c.Policy.Enabled:
		return ReasonDisabled
	case c.Policy.Manual:
		return ReasonManual
	case c.Switched && !c.Ours:
		return ReasonByHand
	case c.VolumesAtRisk:
		return ReasonMaintenance
	default:
		return ""
	}
}
