package wake

import (
	"context"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// replaceRetry is when a pod in which somebody may listen is looked at again: its sidecar is about to take its word back.
const replaceRetry = 5 * time.Second

// tendRestart deletes the primary's pod in which PostgreSQL was not started again after a doze, as its sidecar has recorded: the
// instance manager tries only once, and the operator makes the pod anew. The record names the pod, and another is not written for
// the same wake. It may be old by now, so nobody may listen, and the kubelet must not
// call PostgreSQL ready.
func (c *Controller) tendRestart(ctx context.Context, seen *snapshot, again *requeue) error {
	now := again.now
	if seen.cluster == nil || !replaces(plan.View(seen.cluster, now)) {
		return nil
	}
	pods, err := c.Informers.Pods(ctx, seen.name)
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		failed := func(view plan.Cluster) bool { return replaces(view) && view.RestartFailed == string(pod.UID) }
		if pod.Name != seen.cluster.Status.CurrentPrimary || !endpointslice.IsInstance(pod) || !pod.DeletionTimestamp.IsZero() ||
			!failed(plan.View(seen.cluster, now)) {
			continue
		}
		live, err := c.live(ctx, seen, now)
		if err != nil || !failed(live) {
			return err
		}
		found, _, err := c.look(ctx, seen)
		if err != nil {
			return err
		}
		if !slices.Contains(found, plan.Instance{UID: pod.UID, Refuses: true}) {
			again.at(now.Add(replaceRetry))
			return nil
		}
		if err := c.deletePod(ctx, pod); err != nil {
			return err
		}
		c.Logger.Warn("the pod of a cluster that did not start after a doze is deleted",
			"namespace", pod.Namespace, "cluster", seen.name.Name, "pod", pod.Name)
	}
	return nil
}

// replaces reports whether the pod in which PostgreSQL was not started is to be replaced. The volumes of a pod that is made anew must
// not be at risk.
func replaces(view plan.Cluster) bool {
	return view.RestartFailed != "" && !view.VolumesAtRisk && !view.Gone
}
