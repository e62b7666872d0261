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
	return c.Events.Write(ctx, seen.cluster, events.Event{
		Warning: true, Reason: "WakeRefused", Message: "The cluster sleeps and is not woken: " + plan.VolumesAtRisk,
		Occasion: seen.cluster.Annotations[contract.AnnotationAsleepSince] + " " + string(planned.Reason),
	}, now)
}
