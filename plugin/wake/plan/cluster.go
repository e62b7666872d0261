package plan

import (
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

const on = "on"

// Cluster is what a decision needs to know of a Cluster.
type Cluster struct {
	// Listed says that the Cluster lists the plugin; Deleting that it is being deleted.
	Listed, Deleting bool
	// Policy is what the annotations ask for, Problems how many of them are invalid.
	Policy   idle.Policy
	Problems int
	// UnderstoodFrom is when they all will be, as nobody changes them; zero: never.
	UnderstoodFrom time.Time
	// HibernationOn says that hibernation is on, OwnsHibernation that this project turned it on, and DeletingPods and
	// Hibernated that the operator's condition says so.
	HibernationOn, OwnsHibernation, DeletingPods, Hibernated bool
	// HibernatedBy is the field manager that turned it on at HibernatedAt, if it is another, and has not applied it; else
	// empty.
	HibernatedBy string
	HibernatedAt time.Time
	// WaitsForHealthy says that the operator does not hibernate the cluster before it is healthy.
	WaitsForHealthy bool
	// Fenced says that this project has fenced the instance, and Dozing that hibernation is not on besides.
	Fenced, Dozing bool
	// Stopped says that the stop of PostgreSQL is recorded. MayStillStop says that a person lifted the fence before
	// that, so that PostgreSQL may still stop.
	Stopped, MayStillStop bool
	// RestartFailed is the UID of the pod in which PostgreSQL was not started after a doze. It is empty if PostgreSQL
	// is not to run, because the instance is fenced, by anybody, or hibernation is on, or if the operator's
	// reconciliation is disabled, so that it would not create another pod.
	RestartFailed string
	// VolumesAtRisk says that the operator would delete the volumes of an instance that cannot be scheduled.
	VolumesAtRisk bool
	// Announced, Acknowledged and HoldingValue are the values of the annotations announced, gateway-ready and
	// gateway-holding.
	Announced, Acknowledged, HoldingValue string
	// Holding says that the gateway has confirmed that it holds every client for a doze. It does so even after the
	// deadline, until the announcement is withdrawn, because the patch that sets the fence may be in flight.
	Holding bool
	// DozeAnnounced says that the current announcement is one of a doze and valid, DozeAcknowledged that it was
	// acknowledged besides. The pod may then be not ready, or may become not ready even after its readiness was
	// restored, because of a probe that failed before.
	DozeAnnounced, DozeAcknowledged bool
}

// Lists reports whether the Cluster lists the plugin and has not disabled it.
func Lists(cluster *cnpgv1.Cluster) bool {
	for _, plugin := range cluster.Spec.Plugins {
		if plugin.Name == contract.PluginName && (plugin.Enabled == nil || *plugin.Enabled) {
			return true
		}
	}
	return false
}

// View reads a Cluster. now limits how far ahead a time in an annotation may be.
func View(cluster *cnpgv1.Cluster, now time.Time) Cluster {
	policy, problems := idle.ParsePolicy(cluster.Annotations, now)
	return Cluster{Policy: policy, Problems: len(problems), UnderstoodFrom: idle.UnderstoodFrom(problems)}.Again(cluster, now)
}

// Again reads a Cluster with the policy of an earlier view of the same version, which holds until UnderstoodFrom.
func (c Cluster) Again(cluster *cnpgv1.Cluster, now time.Time) Cluster {
	view := Cluster{
		Policy: c.Policy, Problems: c.Problems, UnderstoodFrom: c.UnderstoodFrom,
		Listed: Lists(cluster), Deleting: !cluster.DeletionTimestamp.IsZero(),
		HibernationOn: cluster.Annotations[contract.AnnotationHibernation] == on,
		VolumesAtRisk: volumesAtRisk(cluster),
		Announced:     cluster.Annotations[contract.AnnotationAnnounced],
		Acknowledged:  cluster.Annotations[contract.AnnotationGatewayReady],
		HoldingValue:  cluster.Annotations[contract.AnnotationGatewayHolding],
	}
	view.OwnsHibernation = view.HibernationOn && OwnsHibernation(cluster.ManagedFields)
	if view.HibernationOn && !view.OwnsHibernation {
		by := contract.Updater(cluster.ManagedFields, "metadata", "annotations", contract.AnnotationHibernation)
		if view.HibernatedBy = by.Manager; by.Time != nil {
			view.HibernatedAt = by.Time.Time
		}
	}
	view.doze(cluster, now)
	if condition := meta.FindStatusCondition(cluster.Status.Conditions, contract.ConditionHibernation); condition != nil {
		view.Hibernated = condition.Status == metav1.ConditionTrue && condition.Reason == contract.Hibernated
		view.DeletingPods = condition.Reason == contract.HibernationDeletingPods
		view.WaitsForHealthy = condition.Reason == contract.HibernationWaitingForHealthy
	}
	return view
}

// doze reads what a doze has left on the Cluster.
func (c *Cluster) doze(cluster *cnpgv1.Cluster, now time.Time) {
	announcement, err := contract.ParseAnnouncement(c.Announced)
	c.Holding = err == nil && announcement.Doze && c.HoldingValue == c.Announced
	valid, _ := announcement.Valid(now)
	c.DozeAnnounced = err == nil && announcement.Doze && valid
	c.DozeAcknowledged = c.DozeAnnounced && c.Acknowledged == c.Announced
	_, fenced := cluster.Annotations[contract.AnnotationFencedInstances]
	_, marked := cluster.Annotations[contract.AnnotationDozingSince]
	_, stopped := cluster.Annotations[contract.AnnotationPostgresStopped]
	c.Fenced = contract.Dozes(cluster.Annotations, cluster.ManagedFields)
	c.Dozing = c.Fenced && !c.HibernationOn
	c.Stopped = c.Dozing && stopped
	c.MayStillStop = marked && !stopped && !fenced && !c.HibernationOn
	if !fenced && !c.HibernationOn &&
		cluster.Annotations[contract.AnnotationReconciliationLoop] != contract.ReconciliationLoopDisabled {
		c.RestartFailed = cluster.Annotations[contract.AnnotationRestartFailed]
	}
}

// VolumesAtRisk says why volumes are at risk, and what to do.
const VolumesAtRisk = "a node maintenance is in progress with reusePVC false, so the operator would delete the volumes of an instance " +
	"that cannot be scheduled; set spec.nodeMaintenanceWindow.inProgress to false, or reusePVC to true"

// volumesAtRisk reports whether the operator deletes the volumes of an instance that cannot be scheduled (1.30:
// processUnschedulableInstances in internal/controller/cluster_controller.go). A wake makes every pod anew, on nodes
// that are being maintained, so that all of them may be such instances at once.
func volumesAtRisk(cluster *cnpgv1.Cluster) bool {
	return cluster.IsNodeMaintenanceWindowInProgress() && !cluster.IsReusePVCEnabled()
}

// BlockedByPlugin reports whether the operator says in the phase that it does not continue with the cluster because it
// does not know this plugin, or because a call of a plugin failed. It does not say whose that was.
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

// OnlyStreaming reports whether a standby serves clients only while it streams from the primary, perhaps with a limited
// lag, as the Cluster's readiness probe demands.
func OnlyStreaming(cluster *cnpgv1.Cluster) bool {
	probes := cluster.Spec.Probes
	return probes != nil && probes.Readiness != nil && probes.Readiness.Type == cnpgv1.ProbeStrategyStreaming
}

// OwnsHibernation reports whether this project alone has set the current value of the hibernation annotation.
func OwnsHibernation(fields []metav1.ManagedFieldsEntry) bool {
	return contract.SetByUs(fields, "metadata", "annotations", contract.AnnotationHibernation)
}

// Sleeps reports whether the Services lead to nothing else than the gateway, because PostgreSQL is stopped or may stop.
func (c Cluster) Sleeps() bool { return c.HibernationOn || c.Dozing || c.MayStillStop }

// HoldsAll reports whether all clients are held, even if an instance accepts sessions.
func (c Cluster) HoldsAll() bool { return c.Sleeps() || c.Holding }

// Obstacle says why connections do not wake the cluster while it sleeps; empty: they do.
func (c Cluster) Obstacle() Reason { return c.ObstacleTo(contract.CauseConnection) }

// ObstacleTo says why the cause does not wake the cluster while it sleeps; empty: it does.
func (c Cluster) ObstacleTo(cause contract.Cause) Reason {
	switch {
	case c.Deleting:
		return ReasonGone
	case !c.Listed:
		return ReasonNotListed
	case c.Problems != 0:
		return ReasonInvalid
	case !c.Policy.Enabled:
		return ReasonDisabled
	case !c.wakesFor(cause):
		return ReasonManual
	case c.HibernationOn && !c.OwnsHibernation:
		return ReasonByHand
	case c.VolumesAtRisk:
		return ReasonMaintenance
	default:
		return ""
	}
}

// wakesFor reports whether the annotation allows the cause to wake the cluster.
func (c Cluster) wakesFor(cause contract.Cause) bool {
	switch cause {
	case contract.CauseConnection:
		return !c.Policy.Manual
	case contract.CauseWindow:
		return c.Policy.OnWindow
	case contract.CauseRequest:
		return !c.Policy.ByPeopleOnly()
	case contract.CauseObject:
		return c.Policy.OnObjects
	case contract.CauseBackup: // one for which the operator calls wakes a cluster that dozes, whatever the annotation lists
	}
	return true
}
