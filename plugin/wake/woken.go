package wake

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// wakerEventDelay is how long the replica that woke a cluster has to write its Event once the Service is ready.
const wakerEventDelay = 5 * time.Second

// recordWoken writes an Event that says who woke the cluster, if the replica that woke it has not, for example because it
// stopped. It ignores older wakes, so that a starting plugin does not report all past ones.
func (c *Controller) recordWoken(ctx context.Context, seen *snapshot, again *requeue) error {
	if seen.sleeps() {
		c.serving.Delete(seen.name)
		return nil
	}
	value := seen.cluster.Annotations[contract.AnnotationLastWake]
	wake, err := contract.ParseLastWake(value)
	if err != nil || again.now.Sub(wake.At) > plan.StandInFor || !seen.serves(wake.Service) {
		return nil // a value that another client wrote says nothing about a wake
	}
	since, _ := c.serving.LoadOrStore(seen.name, again.now)
	at, _ := since.(time.Time)
	if until := at.Add(wakerEventDelay); again.now.Before(until) {
		again.at(until)
		return nil
	}
	return c.Events.Write(ctx, seen.cluster, waker.Woken(value, wake), again.now)
}

// sleeps reports whether the cluster hibernates or dozes, or is gone.
func (s *snapshot) sleeps() bool { return s.cluster == nil || s.view.HibernationOn || s.view.Dozing }

// serves reports whether the Service has a ready endpoint of its own.
func (s *snapshot) serves(service string) bool {
	for i := range s.services {
		if s.services[i].Name == service {
			return len(endpointslice.Ready(&s.services[i], s.slices)) != 0
		}
	}
	return false
}
