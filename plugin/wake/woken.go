package wake

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// wakerWithin is how long the replica that woke a cluster is given to say so, once the Service is ready.
const wakerWithin = 5 * time.Second

// tellWoken has an Event say who woke the cluster if the replica that turned the switch off has not: it may have ended since.
// Wakes of longer ago are passed over, so that a plugin that starts does not tell of all that ever were.
func (c *Controller) tellWoken(ctx context.Context, seen *sight, again *alarm) error {
	if seen.cluster == nil || plan.View(seen.cluster, again.now).Switched {
		c.Journal.Forget(seen.name)
		c.serving.Delete(seen.name)
		return nil
	}
	value := seen.cluster.Annotations[idle.KeyLastWake]
	if value == "" || c.Journal.Told(seen.name, value) {
		return nil
	}
	wake, err := plan.ParseLastWake(value)
	if err != nil || again.now.Sub(wake.At) > c.Settings.WakeTimeout || !seen.serves(wake.Service) {
		return nil //nolint:nilerr // what somebody else wrote there tells of nothing
	}
	since, _ := c.serving.LoadOrStore(seen.name, again.now)
	at, _ := since.(time.Time)
	if until := at.Add(wakerWithin); again.now.Before(until) {
		again.at(until)
		return nil
	}
	return c.Journal.Woken(ctx, seen.cluster, value, wake, again.now)
}

// serves tells whether the Service has a ready endpoint of its own.
func (s *sight) serves(service string) bool {
	for i := range s.services {
		if s.services[i].Name == service {
			return len(slices.Ready(&s.services[i], s.slices)) != 0
		}
	}
	return false
}
