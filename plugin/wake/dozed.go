package wake

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// readySince is since when Services are ready without a break.
type readySince map[types.UID]time.Time

// noteDoze remembers that a cluster dozes, or is about to, and, once it is so no longer, says of its Services since when they have
// been ready. It reports whether the cluster was so when its Services were last led. A replica that was started since does not know.
func (c *Controller) noteDoze(cluster types.NamespacedName, view plan.Cluster, services []plan.Service, now time.Time) bool {
	switch {
	case view.Switched:
		c.dozed.Delete(cluster)
		return false
	case view.Dozing || view.Unsettled || view.Leaving:
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
