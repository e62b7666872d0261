package wake

import (
	"context"
	"fmt"
	stdslices "slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// route separates the Services that can lead to the gateway from those that cannot.
func (c *Controller) route(ctx context.Context, seen *snapshot, pods []corev1.Pod) error {
	services, err := c.Informers.Services(ctx, seen.name)
	if err != nil {
		return err
	}
	// The informers list them in random order, and a bound admits the first ones.
	stdslices.SortFunc(services, func(a, b corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	for i := range services {
		service := &services[i]
		verdict, obstacle := endpointslice.Route(service, seen.cluster, pods, nil)
		if verdict == endpointslice.Routable && service.Spec.Selector[endpointslice.LabelCluster] == "" {
			all, err := c.Informers.Clusters(ctx, seen.name.Namespace)
			if err != nil {
				return err
			}
			verdict, obstacle = endpointslice.Route(service, seen.cluster, pods, all)
			seen.ambiguous = seen.ambiguous || verdict != endpointslice.Routable
		}
		switch verdict {
		case endpointslice.Routable:
			seen.services = append(seen.services, *service)
		case endpointslice.Unroutable:
			seen.unroutable = append(seen.unroutable, service.Name+": "+obstacle)
			seen.stranded = append(seen.stranded, *service)
		case endpointslice.Unrelated, endpointslice.Accepted:
		}
	}
	seen.limitServices()
	seen.addPoolers(services)
	stdslices.Sort(seen.unroutable)
	return nil
}

// mostServices bounds the Services of a cluster that lead here: each takes a port, which are everybody's, and slices in
// every kube-proxy.
const mostServices = 32

// limitServices makes those beyond the bound unroutable. The operator's own come first.
func (s *snapshot) limitServices() {
	if len(s.services) <= mostServices {
		return
	}
	later := func(service *corev1.Service) string { // the operator's own come before all others
		if isFirst(service, s.name.Name) {
			return ""
		}
		return service.Name
	}
	stdslices.SortFunc(s.services, func(a, b corev1.Service) int { return strings.Compare(later(&a), later(&b)) })
	tooMany := s.services[mostServices:]
	s.unroutable = append(s.unroutable, fmt.Sprintf("%s: it is one of %d too many, because a cluster may have %d", tooMany[0].Name, len(tooMany), mostServices))
	s.stranded = append(s.stranded, tooMany...)
	s.services = s.services[:mostServices:mostServices]
}

// isFirst reports whether the Service is one that the operator makes for each cluster.
func isFirst(service *corev1.Service, cluster string) bool {
	suffix, found := strings.CutPrefix(service.Name, cluster)
	return found && stdslices.Contains([]string{"-rw", "-r", "-ro"}, suffix)
}

// leadStranded routes the unroutable Services here while the cluster sleeps, as far as possible: they became so, or
// were created, during the sleep, and nothing else wakes the cluster for their clients. An external traffic policy or a
// load balancer that takes only pods does not affect clients of the ClusterIP. A Service that does not name its cluster
// only keeps its slices, whose port says which cluster to wake. After the wake each is routed here until it is ready,
// as others are.
func (s *snapshot) leadStranded() {
	if len(s.stranded) == 0 {
		return
	}
	for i := range s.stranded {
		service := &s.stranded[i]
		named := service.Spec.Selector[endpointslice.LabelCluster] != ""
		may := s.view.Sleeps() && named && len(s.services) < mostServices
		if service.Spec.Type != corev1.ServiceTypeExternalName && (may || s.port(service.UID) != 0) {
			s.services = append(s.services, *service)
		}
	}
}

// noteUnrouted records how many Services of a sleeping cluster have clients that do not reach the gateway: those that
// lead to no replica of it, and those of which only some addresses do. routes are those that now lead to this one.
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

// Unrouted returns how many Services of the sleeping cluster had clients that do not reach the gateway at its last
// reconciliation.
func (c *Controller) Unrouted(cluster types.NamespacedName) int { return c.unrouted.Get(cluster) }
