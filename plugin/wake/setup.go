package wake

import (
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// atOnce is how many clusters are reconciled concurrently. Most of the time goes into waiting for the API server.
const atOnce = 16

// lookTakes limits one reconciliation, because the plugin waits for running ones when it stops.
const lookTakes = 10 * time.Second

// firstRetry and lastRetry limit the backoff after a failed reconciliation: a cluster must not lack its slices much
// longer than the cause lasts. controller-runtime's default maximum is a quarter of an hour.
const firstRetry, lastRetry = 5 * time.Millisecond, 10 * time.Second

func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// SetupWithManager watches Clusters, their Services, slices, pods and other objects, the nodes, and the plugin's own
// pods.
func (c *Controller) SetupWithManager(manager ctrl.Manager) error {
	made := ctrl.NewControllerManagedBy(manager).Named("wake")
	kinds := append(c.Informers.Kinds(), &corev1.Service{}, &discoveryv1.EndpointSlice{}, &cnpgv1.ScheduledBackup{})
	for _, kind := range kinds {
		made.Watches(kind, handler.EnqueueRequestsFromMapFunc(c.ofCluster))
	}
	err := made.
		Watches(&cnpgv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(c.clusterChanged)).
		Watches(&corev1.Pod{}, c.podHandler()).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.onNode), builder.WithPredicates(nodeSpecChanges())).
		WatchesRawSource(source.Channel(c.silent, c.podHandler())).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce, ReconciliationTimeout: lookTakes, RateLimiter: retries()}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up the controller of the gateway: %w", err)
	}
	return nil
}

// clusterChanged notes a state of a Cluster before it notifies waiters, and requests its reconciliation.
func (c *Controller) clusterChanged(_ context.Context, o client.Object) []reconcile.Request {
	if cluster, ok := o.(*cnpgv1.Cluster); ok {
		c.stopping.Note(cluster, time.Now())
		c.noteSpecification(cluster)
	}
	return c.changed(client.ObjectKeyFromObject(o))
}

// changed notifies waiters of the cluster, and requests its reconciliation.
func (c *Controller) changed(cluster types.NamespacedName) []reconcile.Request {
	c.notifier.Notify(cluster)
	return []reconcile.Request{{NamespacedName: cluster}}
}

// ofCluster requests reconciliation of the clusters to which a Service, a slice or a pod matters.
func (c *Controller) ofCluster(ctx context.Context, o client.Object) []reconcile.Request {
	names, err := c.Informers.Concerned(ctx, o)
	if err != nil {
		c.Logger.Warn("cannot map a change to its clusters", "namespace", o.GetNamespace(), "name", o.GetName(), "error", err.Error())
	}
	var requests []reconcile.Request
	for _, name := range names {
		requests = append(requests, c.changed(name)...)
	}
	return requests
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// podHandler notifies waiters about a cluster's pods, and requests its reconciliation when one becomes ready or unready:
// a plan depends on no other change of them. When a replica starts, becomes ready or unready, is deleted or no longer
// answers, it requests reconciliation of the clusters to which the replica matters.
func (c *Controller) podHandler() handler.EventHandler {
	one := func(ctx context.Context, o client.Object, q queue) {
		c.ofCluster(ctx, o)
		c.replicaChanged(ctx, o, q)
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { one(ctx, e.Object, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { one(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			clusters := c.ofCluster(ctx, e.ObjectNew)
			before, ok := e.ObjectOld.(*corev1.Pod)
			after, also := e.ObjectNew.(*corev1.Pod)
			if !ok || !also {
				return
			}
			readiness := podReady(before) != podReady(after)
			if readiness || !startsUntil(before).Equal(startsUntil(after)) {
				c.replicaChanged(ctx, after, q)
			}
			for _, cluster := range clusters {
				if readiness {
					q.Add(cluster)
				}
			}
		},
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q queue) { c.replicaChanged(ctx, e.Object, q) },
	}
}

// replicaChanged requests reconciliation of every cluster if the pod is this replica's own, otherwise of the clusters
// whose clients are routed to it.
func (c *Controller) replicaChanged(ctx context.Context, pod client.Object, q queue) {
	if pod.GetNamespace() != c.Settings.Replica.Namespace {
		return
	}
	if pod.GetUID() == c.Settings.Replica.UID {
		clusters, err := c.Informers.ClusterNames(ctx, "")
		if err != nil {
			c.Logger.Warn("cannot list the Clusters", "error", err.Error())
		}
		for _, cluster := range clusters {
			q.Add(reconcile.Request{NamespacedName: cluster})
		}
		return
	}
	routed, err := c.Informers.SlicesOf(ctx, pod.GetUID())
	if err != nil {
		c.Logger.Warn("cannot list the EndpointSlices of a replica", "pod", pod.GetName(), "error", err.Error())
		return
	}
	for i := range routed {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: routed[i].Namespace, Name: routed[i].Labels[endpointslice.LabelCluster]}})
	}
}
