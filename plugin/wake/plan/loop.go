package plan

import (
	"hash/fnv"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Specification identifies everything from which the operator and the plugins create a Cluster's instance.
type Specification struct {
	cluster    types.UID
	generation int64
	operator   string
}

// SpecificationOf returns the specification of a Cluster. Like what makes the sidecar hibernate a dozing cluster, it
// does not depend on the version of this plugin.
func SpecificationOf(cluster *cnpgv1.Cluster) Specification {
	operator := cluster.Status.CommitHash
	for i := range cluster.Status.PluginStatus {
		if plugin := &cluster.Status.PluginStatus[i]; plugin.Name != contract.PluginName {
			operator += " " + plugin.Name + "=" + plugin.Version
		}
	}
	return Specification{cluster: cluster.UID, generation: cluster.Generation, operator: operator}
}

// Loop is what decides whether the operator's reconciliation of a cluster ends before the operator acts on the
// instances.
type Loop struct {
	// Kept is the Cluster that the informers keep, and Sent the one that the operator has sent, which is usually newer.
	Kept, Sent *cnpgv1.Cluster
	// Fenced is the specification with which we have fenced the cluster; the zero value until the informers deliver it.
	Fenced Specification
	// Instances are the pods of the cluster's instances.
	Instances []corev1.Pod
}

// Ends reports whether the operator has nothing to do before the cluster is woken: from 1.30.1 on it would reconcile a
// cluster that dozes every second. PostgreSQL has stopped for our doze, and the Cluster and the pod are those at the
// fence. If anything else is the case, or the two states of the Cluster differ in that, the operator must continue.
func (l Loop) Ends(now time.Time) bool {
	view := View(l.Kept, now)
	return view.Stopped && view.Listed && !view.Deleting && view.Policy.SleepRequested.IsZero() &&
		l.agree() && l.unchanged() && l.hasItsPod()
}

// agree reports whether the operator knows of the same doze, and of nothing else that is asked for.
func (l Loop) agree() bool {
	for _, key := range [...]string{
		contract.AnnotationFencedInstances, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped,
		contract.AnnotationHibernation, contract.AnnotationSleepRequested,
	} {
		if l.Kept.Annotations[key] != l.Sent.Annotations[key] {
			return false
		}
	}
	return l.Sent.DeletionTimestamp.IsZero()
}

// unchanged reports whether the specification is that at the fence, and the operator has completed what that asks for.
// A generation never returns, so a specification that is the same before the fence and now was the same in between.
func (l Loop) unchanged() bool {
	completed := l.Sent.Status.Phase == cnpgv1.PhaseHealthy || BlockedByPlugin(l.Sent) // which replaced that phase
	return completed && l.Fenced == SpecificationOf(l.Kept) && l.Fenced == SpecificationOf(l.Sent)
}

// hasItsPod reports whether the only instance is the primary in whose pod PostgreSQL has stopped, and that pod stays.
// The operator has just counted the pods, perhaps before the informers learn that one is gone.
func (l Loop) hasItsPod() bool {
	if len(l.Instances) != 1 || l.Sent.Status.Instances != 1 {
		return false
	}
	pod, status := &l.Instances[0], &l.Sent.Status
	return string(pod.UID) == l.Kept.Annotations[contract.AnnotationPostgresStopped] &&
		pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp.IsZero() &&
		pod.Name == status.CurrentPrimary && pod.Name == status.TargetPrimary
}

// LoopInterval returns how long the operator waits until it reconciles a dozing cluster again, although nothing has
// changed: 30 to 60 s in whole seconds, different for each cluster so that a fleet is spread.
func LoopInterval(cluster types.UID) time.Duration {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(cluster))
	return (30 + time.Duration(hash.Sum32()%31)) * time.Second
}
