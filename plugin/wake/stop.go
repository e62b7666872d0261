package wake

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

const (
	// takeOverTimeout is how long another replica is given to lead the clients of the same Services: one that has just
	// started, as in a rollout, has its slices to make first. A Service of a sleeping cluster must not be without any.
	takeOverTimeout, takeOverInterval = 10 * time.Second, 200 * time.Millisecond
	// removeTimeout and DrainTimeout together limit the deletion of this replica's slices when it stops. Sessions
	// continue meanwhile, and a busy API server needs longer than removeTimeout for thousands. The other replicas
	// delete the rest.
	removeTimeout = 8 * time.Second
	// maxConcurrentRemovals is in how many namespaces slices are removed at once.
	maxConcurrentRemovals = 16
	// removalLasts is how long a kube-proxy may lead clients here after drainDelay, for each slice removed. Two seconds
	// did not suffice for 4,000 slices: seen with iptables at a load average of 10.
	removalLasts = 2500 * time.Microsecond
)

// Leave takes this replica's slices away, so that nobody is routed here any more when it returns.
func (c *Controller) Leave(ctx context.Context) {
	c.leaving.Lock()
	c.stopped = true
	c.leaving.Unlock()
	c.drainBy = time.Now().Add(takeOverTimeout + removeTimeout + drainDelay + c.Settings.DrainTimeout)
	c.current.DeleteFunc(func(_ types.NamespacedName, answer handover) bool { answer.cancel(); return true })
	c.running.Wait()
	c.awaitOthers(ctx)
	removed, err := c.removeAll(ctx)
	if c.removed = removed; err != nil {
		c.Logger.Warn("not every EndpointSlice of this replica could be removed; the other replicas will", "error", err.Error())
	}
	pause(ctx, drainDelay) // other nodes' kube-proxies hear of it later
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Drain gives the sessions that are left after [Controller.Leave] the time to end, and still accepts others in the
// first half of it if the other nodes need longer or many slices were removed. The informers must keep running
// meanwhile: held clients wait for their clusters.
func (c *Controller) Drain(ctx context.Context) {
	ctx, cancel := context.WithDeadline(ctx, c.drainBy)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, c.Settings.DrainTimeout)
	defer cancel()
	late := max(c.Settings.HandoverWait-drainDelay, 0) + time.Duration(c.removed)*removalLasts
	pause(ctx, min(late, c.Settings.DrainTimeout/2))
	if err := c.gateway.Drain(ctx); err != nil {
		c.Logger.Warn("sessions were cut", "error", err.Error())
	}
}

// awaitOthers waits until every Service that leads here leads to another replica too, for a while.
func (c *Controller) awaitOthers(ctx context.Context) {
	alone := 0
	if err := wait.PollUntilContextTimeout(ctx, takeOverInterval, takeOverTimeout, true, func(ctx context.Context) (bool, error) {
		left, err := c.ledHereOnly(ctx)
		alone = left
		return err == nil && left == 0, nil
	}); err != nil {
		c.Logger.Warn("no other replica leads these Services; their clients are refused until one does", "services", alone)
	}
}

// ledHereOnly is how many Services lead to this replica and to no other.
func (c *Controller) ledHereOnly(ctx context.Context) (int, error) {
	all, err := c.Informers.OurSlices(ctx)
	if err != nil {
		return 0, err
	}
	here, elsewhere := sets.New[types.UID](), sets.New[types.UID]()
	for i := range all {
		slice := &all[i]
		if endpointslice.ReplicaOf(slice) == c.Settings.Replica.UID {
			here.Insert(endpointslice.ServiceOf(slice))
		} else {
			elsewhere.Insert(endpointslice.ServiceOf(slice))
		}
	}
	return here.Difference(elsewhere).Len(), nil
}

// removeAll removes this replica's slices, with one request in each namespace, and returns how many there were.
func (r *router) removeAll(ctx context.Context) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout+r.Settings.DrainTimeout)
	defer cancel()
	namespaces := sets.New[string]()
	for _, cluster := range r.openPorts.Keys() { // the informers may not have told of the newest slices
		namespaces.Insert(cluster.Namespace)
	}
	own, err := r.Informers.SlicesOf(ctx, r.Settings.Replica.UID)
	if err != nil {
		return 0, err
	}
	for i := range own {
		namespaces.Insert(own[i].Namespace)
	}
	var group errgroup.Group // one that fails must not cancel the others
	group.SetLimit(maxConcurrentRemovals)
	for _, namespace := range sets.List(namespaces) {
		group.Go(func() error {
			err := r.Client.DeleteAllOf(ctx, &discoveryv1.EndpointSlice{}, client.InNamespace(namespace), client.MatchingLabels{
				discoveryv1.LabelManagedBy: endpointslice.ManagedBy, endpointslice.LabelReplica: string(r.Settings.Replica.UID),
			})
			if err != nil {
				return fmt.Errorf("delete this replica's EndpointSlices in %s: %w", namespace, err)
			}
			return nil
		})
	}
	return len(own), group.Wait()
}
