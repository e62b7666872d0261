package wake

import (
	"context"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
)

// toldWithin is how long the informers are given to tell of a slice that was made, before it is made again.
const toldWithin = 2 * time.Second

// ensureSlice makes or mends a slice; it writes nothing if the slice is as wanted.
func (c *Controller) ensureSlice(ctx context.Context, seen *sight, want *discoveryv1.EndpointSlice, again *alarm) error {
	name := types.NamespacedName{Namespace: want.Namespace, Name: want.Name}
	for i := range seen.slices {
		if have := &seen.slices[i]; have.Name == want.Name {
			c.made.Delete(name)
			if slices.Same(have, want) {
				return nil
			}
			have = have.DeepCopy()
			slices.Become(have, want)
			if err := c.Client.Update(ctx, have); err != nil {
				return fmt.Errorf("update EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
			}
			return nil
		}
	}
	if made, is := c.made.Load(name); is {
		at, _ := made.(time.Time)
		if until := at.Add(toldWithin); again.now.Before(until) {
			again.at(until)
			return nil
		}
	}
	c.made.Store(name, again.now)
	// It may be there already: the informers tell later. Then they tell of it too.
	if err := c.Client.Create(ctx, want.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
		c.made.Delete(name)
		return fmt.Errorf("create EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// reduce takes away what is not planned: this replica's slices, and then, a moment later, its doors; and the slices of
// replicas that are dead.
func (c *Controller) reduce(ctx context.Context, seen *sight, planned plan.Plan, leds []led, again *alarm) error {
	wanted := map[string]bool{}
	for _, l := range leds {
		for i := range l.wanted {
			wanted[l.wanted[i].Name] = true
		}
	}
	own := c.Settings.Replica.UID
	stranded := false
	for i := range seen.slices {
		slice := &seen.slices[i]
		if !slices.IsOurs(slice) || wanted[slice.Name] {
			continue
		}
		if slices.ReplicaOf(slice) == own {
			if contains(planned.Lead, slices.ServiceOf(slice)) && len(leds) == 0 {
				continue // planned, but it could not be opened: what leads there stays until it can
			}
			stranded = stranded || planned.Stranded
		} else if !seen.replicas.ready(own) {
			continue // who is not ready does not judge
		} else if dead, ask := seen.replicas.dead(slice, again.now); !dead {
			again.at(ask)
			continue
		}
		if err := c.remove(ctx, slice); err != nil {
			return err
		}
	}
	c.closeDoors(seen.name, func(uid types.UID) bool { return contains(planned.Lead, uid) }, again)
	return c.tellStranded(ctx, seen, planned, stranded, again.now)
}

func (c *Controller) closeDoors(cluster types.NamespacedName, keep func(types.UID) bool, again *alarm) {
	closed, next := c.doors.close(cluster, keep, again.now)
	again.at(next)
	for _, uid := range closed {
		c.Gateway.Close(uid)
		c.Logger.Info("a Service no longer leads to the gateway", "namespace", cluster.Namespace, "cluster", cluster.Name, "uid", uid)
	}
}

// remove deletes a slice if it is still the one that was seen.
func (c *Controller) remove(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	err := c.Client.Delete(ctx, &discoveryv1.EndpointSlice{ObjectMeta: slice.ObjectMeta}, client.Preconditions{UID: &slice.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete EndpointSlice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	return nil
}
