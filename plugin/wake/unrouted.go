package wake

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// noteUnrouted records how many Services of a sleeping cluster should lead to the gateway but lead to no replica of it. routes
// are those that now lead to this one.
func (c *Controller) noteUnrouted(seen *snapshot, planned plan.Plan, routes []routed) {
	count := 0
	if planned.Reason == plan.ReasonAsleep || planned.Reason == plan.ReasonMaintenance || planned.Reason == plan.ReasonDozing {
		routed := map[types.UID]bool{}
		for i := range seen.slices {
			if endpointslice.IsOurs(&seen.slices[i]) {
				routed[endpointslice.ServiceOf(&seen.slices[i])] = true
			}
		}
		for i := range routes {
			routed[routes[i].service.UID] = true
		}
		for _, uid := range planned.Lead {
			if !routed[uid] {
				count++
			}
		}
	}
	if count == 0 {
		c.unrouted.Delete(seen.name)
		return
	}
	c.unrouted.Store(seen.name, count)
}

// Unrouted returns how many Services of the sleeping cluster led to no gateway at its last reconciliation.
func (c *Controller) Unrouted(cluster types.NamespacedName) int {
	count, _ := c.unrouted.Load(cluster)
	number, _ := count.(int)
	return number
}
