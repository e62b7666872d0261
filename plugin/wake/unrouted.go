package wake

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// noteUnrouted records how many Services of a sleeping cluster have clients that do not reach the gateway: those that lead to no
// replica of it, and those of which only some addresses do. routes are those that now lead to this one.
func (c *Controller) noteUnrouted(seen *snapshot, planned plan.Plan, routes []routed) {
	lost := map[types.UID]bool{}
	if planned.Reason == plan.ReasonAsleep || planned.Reason == plan.ReasonMaintenance || planned.Reason == plan.ReasonDozing {
		led := seen.led()
		for i := range routes {
			led[routes[i].service.UID] = true
		}
		for _, uid := range planned.Lead {
			if !led[uid] {
				lost[uid] = true
			}
		}
		for i := range seen.stranded {
			lost[seen.stranded[i].UID] = true
		}
	}
	c.unrouted.Change(seen.name, func(count *int) bool { *count = len(lost); return *count != 0 })
}

// Unrouted returns how many Services of the sleeping cluster had clients that do not reach the gateway at its last reconciliation.
func (c *Controller) Unrouted(cluster types.NamespacedName) int { return c.unrouted.Get(cluster) }
