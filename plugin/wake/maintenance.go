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
		return nil
	}
	return c.recordOnce(ctx, seen, events.Event{
		Warning: true, Reason: "WakeRefused", Message: "The cluster sleeps and is not woken: " + plan.VolumesAtRisk,
		Occasion: seen.cluster.Annotations[contract.AnnotationAsleepSince] + " " + string(planned.Reason),
	}, now)
}

// recordOnce writes an Event that the cluster's next reconciliations would write again, without asking the API server each time
// whether it exists.
func (c *Controller) recordOnce(ctx context.Context, seen *snapshot, event events.Event, now time.Time) error {
	if c.isRecorded(seen, event) {
		return nil
	}
	if err := c.Events.Write(ctx, seen.cluster, event, now); err != nil {
		return err
	}
	c.recorded.Store(seen.name, event.Reason+" "+event.Occasion)
	return nil
}

// isRecorded reports whether the Event is the last one that recordOnce has written about the cluster.
func (c *Controller) isRecorded(seen *snapshot, event events.Event) bool {
	recorded, _ := c.recorded.Load(seen.name)
	return recorded == event.Reason+" "+event.Occasion
}
