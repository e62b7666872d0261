package wake

import (
	"context"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// replaceRetry is when a pod is inspected again in which PostgreSQL may listen after all: its sidecar is about to remove the record.
const replaceRetry = 5 * time.Second

// reconcileRestart deletes the primary's pod if its sidecar has recorded that PostgreSQL was not started after a doze, so that the
// operator creates it again: the instance manager tries only once. The record names the pod, and only one is written for each wake.
// It may be outdated, so PostgreSQL's port must refuse connections, and the kubelet must report its container as not ready.
func (c *Controller) reconcileRestart(ctx context.Context, seen *snapshot, again *requeue) error {
	now := again.now
	if !mustReplacePod(seen.view) {
		return nil
	}
	pods, err := c.Informers.Pods(ctx, seen.name)
	if err != nil {
		return err
	}
	for i := range pods {
		pod := &pods[i]
		failed := func(view plan.Cluster) bool { return mustReplacePod(view) && view.RestartFailed == string(pod.UID) }
		if pod.Name != seen.cluster.Status.CurrentPrimary || !endpointslice.IsInstance(pod) || !pod.DeletionTimestamp.IsZero() ||
			!failed(seen.view) {
			continue
		}
		live, err := c.live(ctx, seen, now)
		if err != nil || !failed(live) {
			return err
		}
		found, _, err := c.inspectInstances(ctx, seen)
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

// mustReplacePod reports whether the pod in which PostgreSQL was not started is to be replaced. The volumes must not be at risk when
// the pod is created again.
func mustReplacePod(view plan.Cluster) bool {
	return view.RestartFailed != "" && !view.VolumesAtRisk && !view.Deleting
}
