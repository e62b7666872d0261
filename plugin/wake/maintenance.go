package wake

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// recordMaintenance writes an Event, once for each sleep, that says why nothing wakes the cluster although its clients are routed
// here.
func (c *Controller) recordMaintenance(ctx context.Context, seen *snapshot, planned plan.Plan, now time.Time) error {
	if seen.cluster == nil || planned.Reason != plan.ReasonMaintenance {
		c.refusing.Delete(seen.name)
		return nil
	}
	sleep := seen.cluster.Annotations[contract.AnnotationAsleepSince]
	if told, ok := c.refusing.Load(seen.name); ok && told == sleep {
		return nil
	}
	err := c.Events.Write(ctx, seen.cluster, events.Event{
		Warning: true, Reason: "WakeRefused", Message: "The cluster sleeps and is not woken: " + plan.VolumesAtRisk, Occasion: sleep + " " + string(planned.Reason),
	}, now)
	if err != nil {
		return err
	}
	c.refusing.Store(seen.name, sleep)
	return nil
}
