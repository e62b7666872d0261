package wake

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// disruption returns why a dozing cluster is to hibernate; empty if it may keep dozing.
func (c *Controller) disruption(ctx context.Context, cluster types.NamespacedName, pods []corev1.Pod) (string, error) {
	if c.stopping.SecretsChanged(cluster) {
		return "because a password has changed, which is to be set before the next client is served", nil
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
			return fmt.Sprintf("because its pod has to leave Node %s: the node %s", node.Name, why), nil
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
	clusters, err := c.Informers.Clusters(ctx, "")
	if err != nil {
		c.Logger.Warn("cannot list the Clusters", "error", err.Error())
		return nil
	}
	now := time.Now()
	var requests []reconcile.Request
	for i := range clusters {
		cluster := &clusters[i]
		if !c.stopping.View(cluster, now).Dozing {
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

// nodeSpecChanges drops the deletion of a node, and updates that leave its spec unchanged: its status changes every few
// minutes.
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
