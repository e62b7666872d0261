package waker

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

const (
	// delayedAfter is how long a wake may take before an Event says what it waits for. Most take seconds.
	// ScaleToZeroWakeSlow fires for wakes that take longer than this.
	delayedAfter = 30 * time.Second
	// delayedEvery is how often the cause is checked again.
	delayedEvery = 30 * time.Second
	// explainTimeout bounds the reading of pods and Events, for which the search waits.
	explainTimeout = time.Second
)

// explainDelay writes an Event that says what a slow wake waits for, and another when the cause changes.
func (w *wake) explainDelay(ctx context.Context, seen *snapshot, now time.Time) {
	if now.Sub(w.phases.began) < delayedAfter || now.Sub(w.explained) < delayedEvery {
		return
	}
	w.explained = now
	cause, err := w.cause(ctx, seen)
	if err != nil {
		w.Logger.Warn("cannot determine why a wake is delayed", "namespace", w.service.Namespace, "cluster", w.service.Cluster, "error", err.Error())
		return
	}
	if cause == w.delay {
		return
	}
	w.delay = cause
	w.warn("WakeDelayed", fmt.Sprintf("The wake takes longer than %s: %s", delayedAfter, cause))
}

// cause finds out what the wake waits for. It asks the API server, because the informers keep too little of pods, and
// no Events.
func (w *wake) cause(ctx context.Context, seen *snapshot) (string, error) {
	if w.queue.why != "" {
		return w.queue.why, nil
	}
	if seen.pooler != nil && slices.Contains(seen.candidates(), w.found) {
		return fmt.Sprintf("PostgreSQL accepts sessions, and the wake waits for a PgBouncer of Pooler %s to accept connections", seen.pooler.Name), nil
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	var pods corev1.PodList
	of := client.MatchingLabels{endpointslice.LabelCluster: w.service.Cluster}
	if err := w.APIReader.List(ctx, &pods, client.InNamespace(w.service.Namespace), of); err != nil {
		return "", fmt.Errorf("list the pods of Cluster %s/%s: %w", w.service.Namespace, w.service.Cluster, err)
	}
	instances := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return !endpointslice.IsInstance(&p) })
	var warnings []corev1.Event
	for i := range instances {
		var of corev1.EventList
		about := client.MatchingFields{"involvedObject.name": instances[i].Name}
		if err := w.APIReader.List(ctx, &of, client.InNamespace(w.service.Namespace), about); err != nil {
			return "", fmt.Errorf("list the Events of pod %s/%s: %w", w.service.Namespace, instances[i].Name, err)
		}
		for _, event := range of.Items {
			if event.InvolvedObject.UID == instances[i].UID {
				warnings = append(warnings, event)
			}
		}
	}
	// The operator names the Lease after the Cluster (1.30: internal/controller/primary_lease.go). Older ones make none.
	var lease coordinationv1.Lease
	name := client.ObjectKey{Namespace: w.service.Namespace, Name: w.service.Cluster}
	if err := w.APIReader.Get(ctx, name, &lease); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read Lease %s: %w", name, err)
	}
	return causeOf(seen.view, seen.cluster.Status.TargetPrimary, instances, warnings, &lease), nil
}

// causeOf says what a wake waits for, given the cluster's instances, the Events about them, and the Lease that the
// primary must hold: from 1.30.1 on, it does not start PostgreSQL before that. A Lease that its holder no longer renews
// is taken over within 15 s.
func causeOf(
	cluster plan.Cluster, primary string, instances []corev1.Pod, events []corev1.Event, lease *coordinationv1.Lease,
) string {
	switch {
	case cluster.Dozing && cluster.Stopped:
		return "the plugin cannot lift the fence, for instance because the operator's webhooks do not answer; its log says why"
	case cluster.Dozing || cluster.MayStillStop:
		return "PostgreSQL is still stopping for the doze that it is woken from"
	case cluster.HibernationOn && len(instances) != 0:
		return fmt.Sprintf("the operator has not hibernated the cluster yet, and pod %s is still there", instances[0].Name)
	case cluster.HibernationOn && cluster.Hibernated:
		return "the plugin cannot turn off the hibernation annotation, for instance because the operator's webhooks do not answer; its log says why"
	case cluster.HibernationOn:
		return "the operator has not said that it has hibernated the cluster; check that it runs"
	case len(instances) == 0:
		return "the operator has made no pod: the API server rejects it (a full ResourceQuota, a LimitRange, an admission policy or webhook), " +
			"a major upgrade is running, or the operator is down; see the phase of the Cluster and the operator's log"
	}
	for i := range instances {
		if cause := causeIn(&instances[i], events); cause != "" {
			return cause
		}
	}
	if holder := ptr.Deref(lease.Spec.HolderIdentity, ""); holder != "" && holder != primary {
		return fmt.Sprintf("PostgreSQL does not accept sessions yet; the primary waits for Lease %s, which is held by %s", lease.Name, holder)
	}
	return "PostgreSQL does not accept sessions yet"
}

// causeIn says what keeps the pod from running, or "" if it runs.
func causeIn(pod *corev1.Pod, events []corev1.Event) string {
	if !pod.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("pod %s is being deleted", pod.Name)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("pod %s cannot be scheduled: %s", pod.Name, condition.Message)
		}
	}
	creating := false
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := status.State.Waiting
		if waiting == nil {
			continue
		}
		switch waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			return fmt.Sprintf("the image of container %s of pod %s cannot be pulled (%s): %s", status.Name, pod.Name, waiting.Reason, waiting.Message)
		case "CrashLoopBackOff":
			return fmt.Sprintf("container %s of pod %s is crash-looping: %s", status.Name, pod.Name, waiting.Message)
		}
		creating = true
	}
	if !creating {
		return ""
	}
	failed := slices.DeleteFunc(slices.Clone(events), func(e corev1.Event) bool {
		return e.InvolvedObject.Name != pod.Name || e.Reason != "FailedAttachVolume" && e.Reason != "FailedMount"
	})
	if len(failed) != 0 {
		event := slices.MaxFunc(failed, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
		return fmt.Sprintf("a volume of pod %s is not available (%s): %s", pod.Name, event.Reason, event.Message)
	}
	return fmt.Sprintf("the containers of pod %s are being created", pod.Name)
}
