package wake

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// longStop is how long PostgreSQL may take to stop before an Event says what it waits for. Most stops take two seconds.
const longStop = 30 * time.Second

// recordLongStop writes an Event, once for each sleep, if PostgreSQL takes long to stop: its clients are held until then. The sidecar
// cannot write it, because it ends as soon as its pod is deleted.
func (c *Controller) recordLongStop(ctx context.Context, seen *snapshot, again *requeue) error {
	if seen.cluster == nil {
		return nil
	}
	view := plan.View(seen.cluster, again.now)
	key, order := contract.AnnotationDozingSince, "its WAL to be archived, for at most spec.switchoverDelay"
	if view.HibernationOn {
		key, order = contract.AnnotationAsleepSince, "sessions to end, for at most spec.smartShutdownTimeout, and then for its WAL to be archived"
	}
	begun := seen.cluster.Annotations[key]
	since, err := time.Parse(time.RFC3339, begun)
	if stops := view.OwnsHibernation && !view.Hibernated || view.Dozing && !view.Stopped; !stops || err != nil {
		return nil // a value that another client wrote says nothing about a stop
	}
	if due := since.Add(longStop); again.now.Before(due) {
		again.at(due)
		return nil
	}
	pods, err := c.instances(ctx, seen)
	if err != nil {
		return err
	}
	var waits []string
	for i := range pods {
		waits = append(waits, waitsIn(&pods[i], view))
	}
	return c.Events.Write(ctx, seen.cluster, events.Event{Warning: true, Reason: "StopDelayed", Occasion: begun, Message: fmt.Sprintf("PostgreSQL has not stopped within %s, and clients are held until it has: %s. PostgreSQL waits for %s (condition ContinuousArchiving)",
		longStop, cmp.Or(strings.Join(waits, "; "), "the operator has not reported yet that every pod is deleted"), order)}, again.now)
}

// waitsIn says what a stop waits for in an instance's pod.
func waitsIn(pod *corev1.Pod, view plan.Cluster) string {
	switch {
	case view.Dozing:
		return fmt.Sprintf("the instance manager of pod %s has not stopped it", pod.Name)
	case pod.DeletionTimestamp.IsZero():
		return fmt.Sprintf("the operator has not deleted pod %s", pod.Name)
	}
	var running []string
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.State.Running != nil {
			running = append(running, status.Name)
		}
	}
	return fmt.Sprintf("pod %s still runs %s", pod.Name, cmp.Or(strings.Join(running, ", "), "no container, and is being deleted"))
}
