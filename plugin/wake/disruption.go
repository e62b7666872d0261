package wake

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// reconcileDisruption requests hibernation of a dozing cluster whose pod is to leave its node, or whose Secrets have changed. The
// PodDisruptionBudget of a primary that is not ready allows no eviction, so a drain of the node would wait until the cluster hibernates.
// The instance manager of a new pod sets changed passwords at once, and that of one that dozed not before 20 s have passed.
func (c *Controller) reconcileDisruption(ctx context.Context, seen *snapshot, again *requeue) error {
	if seen.cluster == nil {
		return nil
	}
	view := seen.view
	value := seen.cluster.Annotations[contract.AnnotationDozingSince]
	since, err := time.Parse(time.RFC3339, value)
	if !view.Dozing || view.Deleting || view.VolumesAtRisk || err != nil {
		return nil // a value that another client wrote says nothing about a doze
	}
	why, err := c.disruption(ctx, seen)
	if err != nil || why == "" {
		return err
	}
	requested, err := time.Parse(time.RFC3339, seen.cluster.Annotations[contract.AnnotationSleepRequested]) // by any replica's clock
	if repeat := requested.Add(contract.MaxSleepRequestAge); err == nil && !requested.Before(since) && again.now.Before(repeat) {
		again.at(repeat) // then it means nothing any more
		return nil
	}
	if again.now.Before(since) { // by the sidecar's clock, which would take a request of now for one from before the doze
		again.at(since)
		return nil
	}
	request := again.now.UTC().Format(time.RFC3339)
	if err := waker.Annotate(ctx, c.Client, seen.cluster, map[string]*string{contract.AnnotationSleepRequested: &request}); err != nil {
		return ignoreConflict(err)
	}
	c.Logger.Info("a dozing cluster is to hibernate", "namespace", seen.name.Namespace, "cluster", seen.name.Name, "why", why)
	c.requestEvents.Store(seen.name, events.Event{Reason: "HibernationRequested", Occasion: value, Message: "The dozing cluster hibernates, " + why})
	return nil
}

// recordHibernationRequested writes the Event of a request to hibernate. If that fails, a later reconciliation writes it, even if the
// cluster no longer dozes.
func (c *Controller) recordHibernationRequested(ctx context.Context, seen *snapshot, now time.Time) error {
	stored, ok := c.requestEvents.Load(seen.name)
	if !ok {
		return nil
	}
	if event, _ := stored.(events.Event); seen.cluster != nil {
		if err := c.Events.Write(ctx, seen.cluster, event, now); err != nil {
			return err
		}
	}
	c.requestEvents.Delete(seen.name)
	return nil
}

// disruption returns why a dozing cluster is to hibernate; empty if it may go on dozing.
func (c *Controller) disruption(ctx context.Context, seen *snapshot) (string, error) {
	if c.Stopping.SecretsChanged(seen.name) {
		return "so that changed passwords are set before its next client is served", nil
	}
	pods, err := c.Informers.Pods(ctx, seen.name)
	if err != nil {
		return "", err
	}
	for i := range pods {
		pod := &pods[i]
		if !endpointslice.IsInstance(pod) || pod.Spec.NodeName == "" || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		node, err := c.Informers.Node(ctx, pod.Spec.NodeName)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if why := plan.Disruption(node, pod.Spec.Tolerations); why != "" {
			return fmt.Sprintf("so that its pod leaves Node %s: the node %s", node.Name, why), nil
		}
	}
	return "", nil
}

// onNode requests reconciliation of the dozing clusters with an instance on a node that instances may have to leave.
func (c *Controller) onNode(ctx context.Context, o client.Object) []reconcile.Request {
	node, ok := o.(*corev1.Node)
	if !ok || plan.Disruption(node, nil) == "" {
		return nil
	}
	clusters, err := c.Informers.Clusters(ctx)
	if err != nil {
		c.Logger.Warn("the Clusters could not be listed", "error", err.Error())
		return nil
	}
	now := time.Now()
	var requests []reconcile.Request
	for _, cluster := range clusters {
		if !c.Stopping.View(cluster, now).Dozing {
			continue
		}
		name := client.ObjectKeyFromObject(cluster)
		pods, err := c.Informers.Pods(ctx, name)
		if err != nil {
			c.Logger.Warn("cannot list the instances of a cluster", "namespace", name.Namespace, "cluster", name.Name, "error", err.Error())
		}
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node.Name }) {
			requests = append(requests, reconcile.Request{NamespacedName: name})
		}
	}
	return requests
}

// nodeSpecChanges passes only changes of a node's spec. Its status changes every few minutes.
func nodeSpecChanges() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, also := e.ObjectNew.(*corev1.Node)
			return ok && also && !equality.Semantic.DeepEqual(before.Spec, after.Spec)
		},
	}
}
