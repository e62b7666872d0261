package wake

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// unreadyFor is how long a replica must be unready, and how old a slice of an unknown pod must be, before the other replicas
// remove the slices. So a brief failure or a late informer does not matter.
const unreadyFor = 3 * time.Second

// replicas are the pods of the plugin's namespace by UID, which include the gateways'.
type replicas map[types.UID]*corev1.Pod

func (c *Controller) readReplicas(ctx context.Context) (replicas, error) {
	pods, err := c.Informers.PodsIn(ctx, c.Settings.Replica.Namespace)
	found := make(replicas, len(pods))
	for i := range pods {
		found[pods[i].UID] = &pods[i]
	}
	return found, err
}

// ready reports whether the kubelet reports the replica as ready.
func (r replicas) ready(uid types.UID) bool {
	pod, ok := r[uid]
	return ok && podReady(pod)
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// dead reports whether the replica of a slice no longer serves. If it does, dead returns when to ask again; zero: only when
// something changes.
func (r replicas) dead(slice *discoveryv1.EndpointSlice, now time.Time) (bool, time.Time) {
	pod, ok := r[endpointslice.ReplicaOf(slice)]
	since := slice.CreationTimestamp.Time
	if ok {
		if podReady(pod) {
			return false, time.Time{}
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.LastTransitionTime.After(since) {
				since = condition.LastTransitionTime.Time
			}
		}
	}
	if until := since.Add(unreadyFor); now.Before(until) {
		return false, until
	}
	return true, time.Time{}
}
