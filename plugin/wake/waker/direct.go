package waker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// podTimeout limits the search for the pod with an address.
const podTimeout = 5 * time.Second

// PodSearches is how many such searches should run at once: the API server has no index of addresses and goes through
// all pods for each, and clients of many addresses may come together.
const PodSearches = 4

// errAsleepAgain means that the cluster was put to sleep again before a client could connect directly.
var errAsleepAgain = errors.New("the cluster is put to sleep again")

// barred reports whether a session of the client must not come from the gateway's address: pg_hba distinguishes the
// two, or NetworkPolicies would not admit the client itself. If that cannot be read, the session is barred.
func (w *Waker) barred(ctx context.Context, seen *snapshot, instance netip.Addr, peer netip.Addr) bool {
	own := slices.IndexFunc(w.Addresses, func(a netip.Addr) bool { return a.Is4() == instance.Is4() })
	if own < 0 || seen.mustReconnect(peer, w.Addresses[own]) {
		return true
	}
	pods, port := seen.pods, endpointslice.NamePostgres
	if seen.pooler != nil {
		pods, port = seen.bouncers, endpointslice.NamePgBouncer
	}
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Status.PodIP == instance.String() })
	if at < 0 {
		return true
	}
	target := policyTarget{Namespace: seen.cluster.Namespace, Labels: pods[at].Labels, Port: contract.PostgresPort, PortName: port}
	policies, err := w.Informers.NetworkPolicies(ctx, seen.cluster.Namespace)
	if err == nil {
		var allowed bool
		allowed, err = w.allowed(policies, target, peer) //nolint:contextcheck // whose an address is is asked for all of its clients, not for the first
		if err == nil {
			return !allowed
		}
	}
	w.Logger.Warn("cannot tell whether NetworkPolicies admit a client, which is asked to connect again", "namespace", target.Namespace,
		"cluster", seen.cluster.Name, "peer", peer, "error", err.Error())
	return true
}

// allowed reports whether the policies let the client reach the target. It looks up the pod of the address only if that
// matters.
func (w *Waker) allowed(policies []networkingv1.NetworkPolicy, target policyTarget, peer netip.Addr) (bool, error) {
	if allows(policies, target, netip.Addr{}, nil) { // everybody
		return true, nil
	}
	found, err, _ := w.peers.Do(peer.String(), func() (any, error) { return w.podAt(peer) })
	if err != nil {
		return false, err
	}
	pod, _ := found.(*clientPod)
	return allows(policies, target, peer, pod), nil
}

// podAt returns the pod whose own address this is, or nil. A pod on the host network has its node's.
func (w *Waker) podAt(address netip.Addr) (*clientPod, error) {
	ctx, cancel := context.WithTimeout(w.Base, podTimeout)
	defer cancel()
	if err := w.PodSearches.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("find the pod of address %s: %w", address, err)
	}
	defer w.PodSearches.Release(1)
	var pods corev1.PodList
	of := client.MatchingFields{"status.podIP": address.Unmap().String(), "spec.hostNetwork": "false"}
	if err := w.APIReader.List(ctx, &pods, of); err != nil {
		return nil, fmt.Errorf("find the pod of address %s: %w", address, err)
	}
	at := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return !endpointslice.HasEnded(&p) })
	if at < 0 {
		return nil, nil
	}
	pod := &pods.Items[at]
	var namespace corev1.Namespace
	if err := w.APIReader.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &namespace); err != nil {
		return nil, fmt.Errorf("read Namespace %s: %w", pod.Namespace, err)
	}
	return &clientPod{Namespace: pod.Namespace, Labels: pod.Labels, NamespaceLabels: namespace.Labels}, nil
}

// awaitDirect waits until the Service leads to PostgreSQL directly on every node, and then returns
// [gateway.ErrReconnect]. It makes the client count as activity at that moment, and while a sleep is announced. It
// returns [errAsleepAgain] if the cluster went to sleep meanwhile.
func (w *Waker) awaitDirect(ctx context.Context, service gateway.Service, peer netip.AddrPort) error {
	signalled := ""      // the announcement during which the client was signalled
	var direct time.Time // since when none of our slices leads here; zero: one does
	for {
		changed := w.Notifier.Listen(clusterOf(service))
		seen, err := w.read(ctx, service)
		if err != nil {
			return err
		}
		now := time.Now()
		wait := readAgain
		switch {
		case seen.view.HoldsAll():
			return errAsleepAgain
		case seen.routed() || len(endpointslice.Ready(seen.service, seen.slices)) == 0:
			direct = time.Time{}
			if seen.announced(now) && signalled != seen.view.Announced {
				signalled = seen.view.Announced
				w.signalInstances(ctx, seen, peer)
			}
		case direct.IsZero():
			direct, wait = now, w.NodesWait
		case now.Sub(direct) >= w.NodesWait:
			w.signalInstances(ctx, seen, peer) // its session may end before the first sample, but the wake was used
			return gateway.ErrReconnect
		default:
			wait = w.NodesWait - now.Sub(direct)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		case <-changed:
		}
	}
}

// maxSignals is how many clients are signalled before the Cluster is read again: each needs a connection to every
// instance.
const maxSignals = 10

// signalWaiters makes the instances count held clients, which they cannot see, as activity: one of each address, once
// for each hibernation. Until the operator begins to delete pods, the sidecar turns hibernation off again for a client
// that counts.
func (w *wake) signalWaiters(ctx context.Context, seen *snapshot) {
	begun := slices.ContainsFunc(seen.pods, func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() })
	if begun || seen.view.Hibernated {
		return
	}
	since, count := seen.cluster.Annotations[contract.AnnotationAsleepSince], 0
	for _, client := range w.searches.clients(w.service.UID) {
		address := client.Peer.Addr().Unmap()
		if w.signalled[address] == since {
			continue
		}
		if count++; count > maxSignals {
			return
		}
		w.signalled[address] = since
		w.signalInstances(ctx, seen, client.Peer)
	}
}

// signalInstances makes the instances count the client, which none of them can see, as activity.
func (w *Waker) signalInstances(ctx context.Context, seen *snapshot, peer netip.AddrPort) {
	for _, instance := range seen.ready() {
		w.Signal(ctx, instance, peer)
	}
}

// routed reports whether one of our slices leads the Service's clients to a gateway.
func (s *snapshot) routed() bool {
	return slices.ContainsFunc(s.slices, func(slice discoveryv1.EndpointSlice) bool {
		return endpointslice.IsOurs(&slice) && endpointslice.ServiceOf(&slice) == s.service.UID
	})
}

// announced reports whether an instance is about to put the cluster to sleep.
func (s *snapshot) announced(now time.Time) bool {
	announcement, err := contract.ParseAnnouncement(s.view.Announced)
	if err != nil {
		return false
	}
	live, _ := announcement.Valid(now)
	return live
}
