package wake

import (
	"context"
	"fmt"
	stdslices "slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// route separates the Services that can lead to the gateway from those that cannot.
func (c *Controller) route(ctx context.Context, seen *snapshot) error {
	services, err := c.Informers.Services(ctx, seen.name)
	if err != nil {
		return err
	}
	pods, err := c.Informers.Pods(ctx, seen.name)
	if err != nil {
		return err
	}
	for i := range services {
		service := &services[i]
		verdict, obstacle := endpointslice.Route(service, seen.cluster, pods, nil)
		if verdict == endpointslice.Routable && service.Spec.Selector[endpointslice.LabelCluster] == "" {
			all, err := c.Informers.ClustersIn(ctx, seen.name.Namespace)
			if err != nil {
				return err
			}
			verdict, obstacle = endpointslice.Route(service, seen.cluster, pods, all)
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
	stdslices.Sort(seen.unroutable)
	return nil
}

// mostServices bounds the Services of a cluster that lead here: each takes a port, which are everybody's, and slices in every
// kube-proxy.
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

// leadStranded has the unroutable Services lead here while the cluster sleeps, as far as they can: they became so, or were made,
// during the sleep, and nothing else wakes the cluster for their clients. Neither a traffic policy nor a load balancer that takes
// pods only matters to who connects to the ClusterIP. Of one that does not name its cluster, only what leads here already is kept:
// its port says which cluster to wake. After the wake each leads here until it is ready, as others do.
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

// recordUnroutable writes the unroutable Services to an annotation of the Cluster, so that its instances keep it awake. The replica
// that writes the annotation also writes an Event.
func (c *Controller) recordUnroutable(ctx context.Context, seen *snapshot, now time.Time) error {
	if seen.cluster == nil || !seen.cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	before, there := seen.cluster.Annotations[contract.AnnotationUnroutableServices]
	names := strings.Join(seen.unroutable, "; ")
	switch obstacle := seen.view.Obstacle(); {
	case obstacle != "" && obstacle != plan.ReasonMaintenance, names == "":
		if !there {
			return nil
		}
		return c.unlessChanged(ctx, seen, map[string]*string{contract.AnnotationUnroutableServices: nil})
	case names == before:
		return nil
	}
	message := "The cluster stays awake, because the clients of these Services could not be routed to the gateway while it sleeps: "
	if seen.view.Sleeps() {
		message = "The cluster sleeps, and not every client of these Services reaches the gateway, which would wake it. A connection to " +
			"its Service " + seen.name.Name + "-rw wakes it, and it then stays awake: "
	}
	if err := c.Events.Write(ctx, seen.cluster, events.Event{
		Warning: true, Reason: "ServiceUnroutable", Occasion: names,
		Message: message + names + ". Change them, or set their annotation " + contract.AnnotationUnroutable + " to " + contract.UnroutableAccept,
	}, now); err != nil {
		return err
	}
	// Last, because it says that the Event has been written.
	return c.unlessChanged(ctx, seen, map[string]*string{contract.AnnotationUnroutableServices: &names})
}
