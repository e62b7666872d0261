package wake

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// unreadyFor is how long a replica must be unready, and how old a slice of an unknown pod must be, before the other
// replicas remove the slices. So a brief failure or a late informer does not matter.
const unreadyFor = 3 * time.Second

// startsWithin is how long the other replicas keep the slices of a replica that is starting, which is ready only once
// it has them: a minute more than it waits for that, until its informers are in sync.
const startsWithin = readyWithin + time.Minute

// replicas are the pods of the plugin's namespace by UID, which include the gateways'.
type replicas map[types.UID]*corev1.Pod

func (a *Access) readReplicas(ctx context.Context) (replicas, error) {
	pods, err := a.Informers.PodsIn(ctx, a.Settings.Replica.Namespace)
	found := make(replicas, len(pods))
	for i := range pods {
		found[pods[i].UID] = &pods[i]
	}
	return found, err
}

func (r replicas) ready(uid types.UID) bool {
	pod, ok := r[uid]
	return ok && podReady(pod)
}

func podReady(pod *corev1.Pod) bool {
	condition := readyCondition(pod)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

func readyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if condition := &pod.Status.Conditions[i]; condition.Type == corev1.PodReady {
			return condition
		}
	}
	return nil
}

// neverReady reports whether the pod has never been ready: its Ready condition is then as old as the pod. Times are
// whole seconds, and the kubelet reads the clock for each, so they may differ by one.
func neverReady(pod *corev1.Pod) bool {
	condition, started := readyCondition(pod), pod.Status.StartTime
	switch {
	case condition == nil:
		return true
	case condition.Status == corev1.ConditionTrue || started == nil:
		return false
	default:
		return !condition.LastTransitionTime.After(started.Add(time.Second))
	}
}

// startsUntil is how long a pod that has not been ready yet is given, from when its last container was started; zero:
// it is not starting, since none runs, it has been ready before, or it is being deleted.
func startsUntil(pod *corev1.Pod) time.Time {
	var until time.Time
	if !neverReady(pod) || pod.DeletionTimestamp != nil {
		return until
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if running := statuses[i].State.Running; running != nil && running.StartedAt.Add(startsWithin).After(until) {
				until = running.StartedAt.Add(startsWithin)
			}
		}
	}
	return until
}

// dead reports whether the replica of a slice no longer serves. If it does, dead returns when to ask again; zero: only
// when something changes.
func (r replicas) dead(slice *discoveryv1.EndpointSlice, now time.Time) (bool, time.Time) {
	pod, ok := r[endpointslice.ReplicaOf(slice)]
	since := slice.CreationTimestamp.Time
	if ok {
		if podReady(pod) {
			return false, time.Time{}
		}
		if until := startsUntil(pod); now.Before(until) {
			return false, until
		}
		if condition := readyCondition(pod); condition != nil && condition.LastTransitionTime.After(since) {
			since = condition.LastTransitionTime.Time
		}
	}
	if until := since.Add(unreadyFor); now.Before(until) {
		return false, until
	}
	return true, time.Time{}
}
