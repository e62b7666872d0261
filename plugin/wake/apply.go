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

// reduce removes what is not planned: this replica's slices and then, a moment later, its ports; and the slices of dead replicas. A slice whose
// port another Service has leads clients into another's database: it goes, even if none takes its place.
func (c *Controller) reduce(ctx context.Context, seen *snapshot, planned plan.Plan, routes []routed, again *requeue) error {
	wanted := map[string]bool{}
	for _, l := range routes {
		for i := range l.wanted {
			wanted[l.wanted[i].Name] = true
		}
	}
	own := c.Settings.Replica.UID
	unwakeable := false
	unwanted := c.noteUnwanted(seen, planned, again.now)
	for i := range seen.slices {
		slice := &seen.slices[i]
		if !endpointslice.IsOurs(slice) || wanted[slice.Name] {
			continue
		}
		misleads, err := c.Ports.BelongsToAnother(ctx, endpointslice.PortOf(slice), endpointslice.ServiceOf(slice))
		if err != nil {
			return err
		}
		if endpointslice.ReplicaOf(slice) == own {
			if slices.Contains(planned.Lead, endpointslice.ServiceOf(slice)) && len(routes) == 0 && !misleads {
				continue // planned, but its port could not be opened: the slices stay until it can
			}
			unwakeable = unwakeable || planned.Unwakeable
		} else if !seen.replicas.ready(own) {
			continue // a replica that is not ready does not judge others
		} else if dead, ask := seen.replicas.dead(slice, again.now); !dead && !misleads && !c.isLost(seen, planned, slice) {
			again.at(ask)
			if gone, err := c.isUnwanted(ctx, seen, unwanted[slice.UID], again); err != nil {
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
	return c.recordUnwakeable(ctx, seen, planned, unwakeable, again.now)
}

// unwantedFor is how long no plan must have wanted a slice before any replica removes it, also one that another replica made: the replica that did removes
// it at once, unless it cannot, or does not see why.
const unwantedFor = 30 * time.Second

// noteUnwanted returns since when this replica's plans have not wanted a slice, by its UID.
func (c *Controller) noteUnwanted(seen *snapshot, planned plan.Plan, now time.Time) map[types.UID]time.Time {
	last, _ := c.unwanted.Load(seen.name)
	before, _ := last.(map[types.UID]time.Time)
	since := map[types.UID]time.Time{}
	for i := range seen.slices {
		slice := &seen.slices[i]
		if !endpointslice.IsOurs(slice) || slices.Contains(planned.Lead, endpointslice.ServiceOf(slice)) {
			continue
		}
		since[slice.UID] = now
		if at, ok := before[slice.UID]; ok {
			since[slice.UID] = at
		}
	}
	if len(since) == 0 {
		c.unwanted.Delete(seen.name)
	} else {
		c.unwanted.Store(seen.name, since)
	}
	return since
}

// isUnwanted reports whether no plan has wanted a slice for unwantedFor, and the API server has the Cluster that the last one was made
// of: a replica whose own informers are late must not judge others.
func (c *Controller) isUnwanted(ctx context.Context, seen *snapshot, since time.Time, again *requeue) (bool, error) {
	if since.IsZero() {
		return false, nil
	}
	if due := since.Add(unwantedFor); again.now.Before(due) {
		again.at(due)
		return false, nil
	}
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
	return nil
}
