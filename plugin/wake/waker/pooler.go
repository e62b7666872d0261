package waker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// readPooler reads the Pooler of the Service, and to which of the cluster's Services its PgBouncer connects.
func (w *Waker) readPooler(ctx context.Context, seen *snapshot, services []corev1.Service, stale bool) error {
	cluster := clusterOf(gateway.Service{Namespace: seen.cluster.Namespace, Cluster: seen.cluster.Name})
	poolers, err := w.Informers.Poolers(ctx, cluster)
	if err != nil {
		return err
	}
	named := func(p cnpgv1.Pooler) bool { return p.Name == endpointslice.PoolerOf(seen.service) }
	of := slices.IndexFunc(poolers, named)
	if of < 0 {
		return fmt.Errorf("find the Pooler of Service %s/%s: %w", cluster.Namespace, seen.service.Name, gateway.ErrGone)
	}
	seen.pooler = &poolers[of]
	target := endpointslice.BehindPooler(seen.pooler)
	at := slices.IndexFunc(services, func(s corev1.Service) bool { return s.Name == target })
	if at < 0 {
		return fmt.Errorf("find Service %s/%s of Pooler %s: %w", cluster.Namespace, target, seen.pooler.Name, gateway.ErrGone)
	}
	seen.behind = &services[at]
	if !stale {
		seen.bouncers, err = w.Informers.PoolerPods(ctx, cluster)
	}
	return err
}

// targets returns where sessions of the Service's clients go: to the instances, or to PgBouncer if there are any.
func (s *snapshot) targets() []netip.AddrPort {
	running := s.running()
	if s.pooler == nil || len(running) == 0 {
		return running
	}
	return s.listening()
}

// listening returns the addresses of PgBouncer that may accept connections: those that the Service selects.
func (s *snapshot) listening() []netip.AddrPort {
	selector := labels.SelectorFromSet(s.service.Spec.Selector)
	var found []netip.AddrPort
	for i := range s.bouncers {
		pod := &s.bouncers[i]
		if !pod.DeletionTimestamp.IsZero() || endpointslice.HasEnded(pod) || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if address, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
			found = append(found, netip.AddrPortFrom(address, contract.PostgresPort))
		}
	}
	slices.SortFunc(found, netip.AddrPort.Compare)
	return found
}

// target returns where the session goes, now that the instance accepts sessions: there, or to a PgBouncer that accepts
// connections; zero if none does yet.
func (w *wake) target(ctx context.Context, seen *snapshot) netip.AddrPort {
	if seen.pooler == nil {
		return w.found
	}
	addresses := seen.listening()
	answers := make(chan netip.AddrPort, len(addresses))
	for _, address := range addresses {
		go func() {
			if !w.Listens(ctx, address) {
				address = netip.AddrPort{}
			}
			answers <- address
		}()
	}
	for range addresses { // one whose node is lost does not delay the others
		if address := <-answers; address.IsValid() {
			return address
		}
	}
	return netip.AddrPort{}
}
