package wake

import (
	"context"
	stdslices "slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// route separates the Services that can lead to the gateway from those that cannot.
func (c *Controller) route(ctx context.Context, seen *snapshot) error {
	services, err := c.Informers.Services(ctx, seen.name)
	if err != nil {
		return err
	}
	pods, err := c.Informers.Pods(ctx, seen.name)
	if err != nil {
		return err
	}
	for i := range services {
		service := &services[i]
		verdict, obstacle := endpointslice.Route(service, seen.cluster, pods, nil)
		if verdict == endpointslice.Routable && service.Spec.Selector[endpointslice.LabelCluster] == "" {
			all, err := c.Informers.ClustersIn(ctx, seen.name.Namespace)
			if err != nil {
				return err
			}
			verdict, obstacle = endpointslice.Route(service, seen.cluster, pods, all)
		}
		switch verdict {
		case endpointslice.Routable:
			seen.services = append(seen.services, *service)
		case endpointslice.Unroutable:
			seen.unroutable = append(seen.unroutable, service.Name+": "+obstacle)
		case endpointslice.Unrelated, endpointslice.Accepted:
		}
	}
	stdslices.Sort(seen.unroutable)
	return nil
}

// recordUnroutable writes the unroutable Services to an annotation of the Cluster, so that its instances keep it awake. The replica
// that writes the annotation also writes an Event.
func (c *Controller) recordUnroutable(ctx context.Context, seen *snapshot, now time.Time) error {
	if seen.cluster == nil || !seen.cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	before, there := seen.cluster.Annotations[contract.AnnotationUnroutableServices]
	names := strings.Join(seen.unroutable, "; ")
	switch obstacle := plan.View(seen.cluster, now).Obstacle(); {
	case obstacle != "" && obstacle != plan.ReasonMaintenance, names == "":
		if !there {
			return nil
		}
		return c.annotateUnroutable(ctx, seen, nil)
	case names == before:
		return nil
	}
	if err := c.annotateUnroutable(ctx, seen, &names); err != nil {
		return err
	}
	return c.Events.Write(ctx, seen.cluster, events.Event{
		Warning: true, Reason: "ServiceUnroutable", Occasion: names,
		Message: "The cluster stays awake, since the clients of these Services could not be routed to the gateway while it sleeps: " + names +
			". Change them, or set their annotation " + contract.AnnotationUnroutable + " to " + contract.UnroutableAccept,
	}, now)
}

// annotateUnroutable sets the annotation, or removes it. A conflict is ignored: the change that caused it leads to another
// reconciliation.
func (c *Controller) annotateUnroutable(ctx context.Context, seen *snapshot, value *string) error {
	err := waker.Annotate(ctx, c.Client, seen.cluster, map[string]*string{contract.AnnotationUnroutableServices: value})
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
