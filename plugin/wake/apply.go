package wake

import (
	"context"
	"fmt"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// toldWithin is how long the informers may take to show a created slice before it is created again.
const toldWithin = 2 * time.Second

// ensureSlice creates or corrects a slice. It writes nothing if the slice is as wanted.
func (c *Controller) ensureSlice(ctx context.Context, seen *snapshot, want *discoveryv1.EndpointSlice, again *requeue) error {
	name := types.NamespacedName{Namespace: want.Namespace, Name: want.Name}
	for i := range seen.slices {
		if have := &seen.slices[i]; have.Name == want.Name {
			c.made.Delete(name)
			if endpointslice.Same(have, want) {
				return nil
			}
			have = have.DeepCopy()
			endpointslice.Update(have, want)
			if err := c.Client.Update(ctx, have); err != nil {
				return fmt.Errorf("update EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
			}
			return nil
		}
	}
	if made, ok := c.made.Load(name); ok {
		at, _ := made.(time.Time)
		if until := at.Add(toldWithin); again.now.Before(until) {
			again.at(until)
			return nil
		}
	}
	c.made.Store(name, again.now)
	// The slice may already exist: informers lag behind, and will show it later.
	if err := c.Client.Create(ctx, want.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
		c.made.Delete(name)
		return fmt.Errorf("create EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// reduce removes what is not planned: this replica's slices and then, a moment later, its ports; and what others must not leave. A slice whose
// port another Service has leads clients into another's database: it goes, even if none takes its place.
func (c *Controller) reduce(ctx context.Context, seen *snapshot, planned plan.Plan, routes []routed, again *requeue) error {
	wanted, led := map[string]bool{}, map[types.UID]bool{}
	for _, l := range routes {
		led[l.service.UID] = true
		for i := range l.wanted {
			wanted[l.wanted[i].Name] = true
		}
	}
	for i := range seen.slices {
		slice := &seen.slices[i]
		if !endpointslice.IsOurs(slice) || wanted[slice.Name] {
			continue
		}
		service := endpointslice.ServiceOf(slice)
		misleads, err := c.Ports.BelongsToAnother(ctx, endpointslice.PortOf(slice), service)
		if err != nil {
			return err
		}
		switch own := endpointslice.ReplicaOf(slice) == c.Settings.Replica.UID; {
		case own && slices.Contains(planned.Lead, service) && !led[service] && !misleads:
			continue // planned, but its port could not be opened: the slices stay until it can
		case own:
		case !seen.replicas.ready(c.Settings.Replica.UID):
			continue // a replica that is not ready does not judge others
		case !misleads:
			if gone, err := c.mayGo(ctx, seen, planned, slice, again); err != nil {
				return err
			} else if !gone {
				continue
			}
		}
		if err := c.remove(ctx, slice); err != nil {
			return err
		}
	}
	c.closePorts(seen.name, func(uid types.UID) bool { return slices.Contains(planned.Lead, uid) }, again)
	return nil
}

// unwantedFor is how long no plan must have wanted a slice before any replica removes it, also one that another replica made: the replica that did removes
// it at once, unless it cannot, or does not see why.
const unwantedFor = 30 * time.Second

// condemned is another replica's slice that is to go if its Service can do without it.
type condemned struct {
	from   time.Time
	silent types.UID // the replica, if it was taken for dead; otherwise no plan wants the slice
}

// mayGo reports whether another replica's slice may be removed.
func (c *Controller) mayGo(ctx context.Context, seen *snapshot, planned plan.Plan, slice *discoveryv1.EndpointSlice, again *requeue) (bool, error) {
	dead, ask := seen.replicas.dead(slice, again.now)
	if dead {
		return true, nil
	}
	again.at(ask)
	isLed := slices.Contains(planned.Lead, endpointslice.ServiceOf(slice))
	if !isLed {
		c.condemned.LoadOrStore(slice.UID, condemned{from: again.now.Add(unwantedFor)})
	}
	stored, known := c.condemned.Load(slice.UID)
	of, _ := stored.(condemned)
	switch {
	case !known:
		return false, nil
	case of.silent != "":
		return c.isSpare(seen, planned, slice), nil
	case isLed:
		c.condemned.Delete(slice.UID)
		return false, nil
	case again.now.Before(of.from):
		again.at(of.from)
		return false, nil
	}
	return c.isCurrent(ctx, seen)
}

// isCurrent reports whether the API server has the Cluster that was read: a replica whose own informers are late must not judge others.
func (c *Controller) isCurrent(ctx context.Context, seen *snapshot) (bool, error) {
	var live cnpgv1.Cluster
	err := c.APIReader.Get(ctx, seen.name, &live)
	switch {
	case apierrors.IsNotFound(err):
		return seen.cluster == nil, nil
	case err != nil:
		return false, fmt.Errorf("read Cluster %s: %w", seen.name, err)
	}
	return seen.cluster != nil && seen.cluster.ResourceVersion == live.ResourceVersion, nil
}

func (c *Controller) closePorts(cluster types.NamespacedName, keep func(types.UID) bool, again *requeue) {
	closed, next := c.openPorts.close(cluster, keep, again.now)
	again.at(next)
	for _, uid := range closed {
		c.Gateway.Close(uid)
		c.Logger.Info("a Service no longer leads to the gateway", "namespace", cluster.Namespace, "cluster", cluster.Name, "uid", uid)
	}
}

// remove deletes a slice if it is still the one that was read.
func (c *Controller) remove(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	err := c.Client.Delete(ctx, &discoveryv1.EndpointSlice{ObjectMeta: slice.ObjectMeta}, client.Preconditions{UID: &slice.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete EndpointSlice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	c.condemned.Delete(slice.UID)
	return nil
}
