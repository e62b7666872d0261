package wake

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// readySince is since when Services are ready without a break.
type readySince map[types.UID]time.Time

// noteDoze records that a cluster dozes or is about to. After that, it sets ReadySince of its Services, and reports true until no
// Service leads to the gateway any more, or until hibernation is on. A replica that was started after the doze knows nothing of it.
func (c *Controller) noteDoze(cluster types.NamespacedName, view plan.Cluster, services []plan.Service, now time.Time) bool {
	switch {
	case view.HibernationOn:
		c.dozed.Delete(cluster)
		return false
	case view.Dozing || view.MayStillStop || view.DozeAcknowledged:
		c.dozed.Store(cluster, readySince{})
		return true
	}
	before, dozed := c.dozed.Load(cluster)
	if !dozed {
		return false
	}
	known, _ := before.(readySince)
	ready := readySince{}
	for i := range services {
		service := &services[i]
		if !service.Ready {
			continue
		}
		service.ReadySince = now
		if since, ok := known[service.UID]; ok {
			service.ReadySince = since
		}
		ready[service.UID] = service.ReadySince
	}
	c.dozed.Store(cluster, ready)
	return true
}
