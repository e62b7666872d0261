package wake

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// bypass is since when, during an announcement, no Service has led to an instance directly.
type bypass struct {
	announcement string
	since        time.Time
}

// confirmHolding confirms the announcement of a doze once, for HandoverWait, no Service has led to an instance directly. announcement is
// empty if one does, or if there is nothing to confirm.
func (c *Controller) confirmHolding(ctx context.Context, seen *snapshot, announcement string, again *requeue) error {
	if announcement == "" {
		c.bypassed.Delete(seen.name)
		return nil
	}
	stored, _ := c.bypassed.Load(seen.name)
	began, _ := stored.(bypass)
	if began.announcement != announcement {
		began = bypass{announcement: announcement, since: again.now}
		c.bypassed.Store(seen.name, began)
	}
	if until := began.since.Add(c.Settings.HandoverWait); again.now.Before(until) {
		again.at(until)
		return nil
	}
	c.Logger.Info("the gateway holds every client of a cluster that is about to doze", "namespace", seen.name.Namespace, "cluster", seen.name.Name)
	return c.unlessChanged(ctx, seen, map[string]*string{contract.AnnotationGatewayHolding: &announcement})
}
