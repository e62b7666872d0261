package wake

import (
	"context"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// reasonsInWords say why connections no longer wake a sleeping cluster.
var reasonsInWords = map[plan.Reason]string{
	plan.ReasonNotListed: "the Cluster does not list the plugin any more",
	plan.ReasonInvalid:   "an annotation is not understood",
	plan.ReasonDisabled:  "the feature was turned off",
	plan.ReasonManual:    "the annotation " + contract.AnnotationWake + " says manual",
}

// recordUnwakeable writes an Event that says how to wake the cluster by hand, once for each sleep and reason. removed says that
// slices of this replica have just been removed for that reason. If the Event cannot be written then, a later reconciliation
// writes it.
func (c *Controller) recordUnwakeable(ctx context.Context, seen *snapshot, planned plan.Plan, removed bool, now time.Time) error {
	if !planned.Unwakeable || seen.cluster == nil {
		c.unrecorded.Delete(seen.name)
		return nil
	}
	if _, pending := c.unrecorded.Load(seen.name); !removed && !pending {
		return nil
	}
	c.unrecorded.Store(seen.name, true)
	message, err := c.howToWake(seen, planned.Reason)
	if err != nil {
		return err
	}
	err = c.Events.Write(ctx, seen.cluster, events.Event{
		Warning: true, Reason: "WakesByHandOnly", Message: message, Occasion: seen.cluster.Annotations[contract.AnnotationAsleepSince] + " " + string(planned.Reason),
	}, now)
	if err != nil {
		return err
	}
	c.unrecorded.Delete(seen.name)
	return nil
}

func (c *Controller) howToWake(seen *snapshot, reason plan.Reason) (string, error) {
	kind, err := events.KindOf(seen.cluster, c.Client)
	if err != nil {
		return "", err
	}
	message := fmt.Sprintf("The cluster sleeps and connections no longer wake it: %s. To wake it: kubectl annotate -n %s clusters.%s %s %s-",
		reasonsInWords[reason], seen.name.Namespace, kind.Group, seen.name.Name, contract.AnnotationHibernation)
	if seen.view.VolumesAtRisk {
		message += ", but not yet: " + plan.VolumesAtRisk
	}
	return message, nil
}
