// Package waker wakes clusters for their clients, and finds the instance that serves them.
//
// One wake goes on for a Service however many clients wait, and one turns the switch off however many Services' clients
// wait; across replicas the API server sees to that, since the switch is turned off only on the state that was read. It is
// never turned off before the operator has deleted every pod, nor where a person put the cluster to sleep.
package waker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// Result is how a wake ended.
type Result string

// The results.
const (
	// ResultSuccess says that an instance accepts sessions.
	ResultSuccess Result = "success"
	// ResultTimeout says that none did in time.
	ResultTimeout Result = "timeout"
	// ResultByHand says that only people wake the cluster.
	ResultByHand Result = "by_hand"
	// ResultMaintenance says that a wake might have had the operator delete volumes.
	ResultMaintenance Result = "maintenance"
)

// Results is the closed list.
func Results() []Result {
	return []Result{ResultSuccess, ResultTimeout, ResultByHand, ResultMaintenance}
}

// Observer is told how each wake ended, and how long it took from its first client on.
type Observer interface {
	Woke(cluster types.NamespacedName, result Result, took time.Duration)
	// Queued tells a change, 1 or -1, of how many wakes wait for the budget.
	Queued(change int)
}

// ErrGone says that there is no such Service or Cluster.
var ErrGone = errors.New("the Service or its Cluster is gone")

// errNobodyWaits says that every client left before the switch was turned off: then nothing is woken.
var errNobodyWaits = errors.New("no client waits any more")

// errPanicked says that a search met a mistake of the program's own.
var errPanicked = errors.New("the search for an instance panicked")

// Waker is the gateway's [gateway.Backend].
type Waker struct {
	// Informers are read; APIReader reads from the API server, and Client writes to it.
	Informers informers.Reader
	APIReader client.Reader
	Client    client.Client
	// Notifier tells when something of a cluster has changed.
	Notifier *Notifier
	// Probe reports whether an instance accepts sessions; it is [Prober.AcceptsSessions] outside of tests.
	Probe func(context.Context, netip.AddrPort) bool
	// Signal has an instance count the client as activity; it is [Prober.Signal] outside of tests.
	Signal func(ctx context.Context, instance, client netip.AddrPort)
	// Sidecars are sent whose the gateway's connections are.
	Sidecars *Sidecars
	// WakeRecorder tells who woke a cluster, Recorder writes other Events, Observer counts, Logger tells.
	WakeRecorder *WakeRecorder
	Recorder     record.EventRecorder
	Observer     Observer
	Logger       *slog.Logger
	// Allowed are the addresses of clients that are served.
	Allowed []netip.Prefix
	// Limit is how long a client waits. A search goes on for as long as one does.
	Limit time.Duration
	// NodesWait is how long other nodes' kube-proxies are given to learn that a Service no longer leads here.
	NodesWait time.Duration
	// Base ends every wake when it ends.
	Base context.Context //nolint:containedctx // a wake outlives the client that began it, and not the plugin

	// Budget is how many wakes may begin.
	Budget *Budget

	switching, peers, resending singleflight.Group
	searches                    searches
	podSearches                 podSearches
	waiters                     waiters
}

var _ gateway.Backend = (*Waker)(nil)

func clusterOf(service gateway.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: service.Namespace, Name: service.Cluster}
}

// Refuses reports whether a client is not served, whatever it wants. What cannot be read speaks against nobody.
func (w *Waker) Refuses(service gateway.Service, peer netip.AddrPort) gateway.Refusal {
	address := peer.Addr().Unmap()
	if !slices.ContainsFunc(w.Allowed, func(p netip.Prefix) bool { return p.Contains(address) }) {
		return gateway.RefusalNotAllowed
	}
	pods, err := w.Informers.PodsAt(w.Base, service.Namespace, address)
	if err == nil && slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
		return endpointslice.IsInstance(&pod) && pod.Labels[endpointslice.LabelCluster] == service.Cluster
	}) {
		return gateway.RefusalInstance
	}
	cluster, err := w.Informers.Cluster(w.Base, clusterOf(service))
	if err != nil {
		return ""
	}
	for _, pattern := range plan.View(cluster, time.Now()).Policy.Ignore {
		if pattern.MatchesUnseen(address) {
			return gateway.RefusalIgnored
		}
	}
	return ""
}

// Running are the instances behind the Service that accept sessions now, by what the kubelet says, and none of a cluster whose
// switch is on. It never wakes.
func (w *Waker) Running(service gateway.Service) []netip.AddrPort {
	seen, err := w.read(w.Base, service)
	if err != nil || seen.view.Switched {
		return nil
	}
	return seen.ready()
}

// SendsAway reports whether a session of the client must not come from the gateway's address to an instance that runs. While that
// cannot be read, it must not.
func (w *Waker) SendsAway(service gateway.Service, peer netip.AddrPort) bool {
	seen, err := w.read(w.Base, service)
	return err != nil || slices.ContainsFunc(seen.ready(), func(instance netip.AddrPort) bool {
		return w.barred(w.Base, seen, instance.Addr(), peer.Addr().Unmap())
	})
}

// Resolve wakes the cluster if it sleeps, and returns an instance behind the Service that accepts sessions. Errors are
// [gateway.ErrAsleepByHand], [gateway.ErrMaintenance], [gateway.ErrReconnect], [gateway.ErrTimeout], [ErrGone] and those of the
// context.
//
// Every client has the time of [Waker.Limit]: one that comes late to a search does not end with it.
func (w *Waker) Resolve(ctx context.Context, service gateway.Service, client gateway.Client) (netip.AddrPort, error) {
	until := time.Now().Add(w.Limit)
	ctx, cancel := context.WithDeadlineCause(ctx, until, gateway.ErrTimeout)
	defer cancel()
	defer w.waiters.add(service.UID, client)()
	for {
		found := w.searches.join(service.UID, until, func() (netip.AddrPort, error) { return w.search(service, client) }) //nolint:contextcheck // the search is everybody's who waits, not this client's
		select {
		case <-ctx.Done():
			return netip.AddrPort{}, context.Cause(ctx)
		case <-found.ended:
			if errors.Is(found.err, errNobodyWaits) || errors.Is(found.err, gateway.ErrTimeout) && time.Now().Before(until) {
				continue // the search ended just when this client came
			}
			if found.err != nil {
				return netip.AddrPort{}, found.err
			}
			switch err := w.admit(ctx, service, client, found.address); {
			case err == nil:
				return found.address, nil
			case !errors.Is(err, errAsleepAgain):
				return netip.AddrPort{}, err
			}
		}
	}
}

// admit returns nil if the client's session may pass through the gateway to the instance. Else it waits until the client can
// connect again to PostgreSQL itself.
func (w *Waker) admit(ctx context.Context, service gateway.Service, client gateway.Client, instance netip.AddrPort) error {
	seen, err := w.read(ctx, service)
	if err != nil {
		return err
	}
	if !w.barred(ctx, seen, instance.Addr(), client.Peer.Addr().Unmap()) {
		return nil
	}
	return w.awaitDirect(ctx, service, client.Peer)
}

// search finds an instance of the Service for everybody who waits for one. It outlives the client that began it. A panic ends this
// search and not the process.
func (w *Waker) search(service gateway.Service, client gateway.Client) (address netip.AddrPort, err error) {
	ctx, cancel := context.WithCancel(w.Base)
	defer cancel()
	wake := &wake{
		Waker: w, service: service, client: client, phases: phases{began: time.Now()}, probed: make(chan probed, 1),
	}
	defer wake.leaveQueue()
	defer func() {
		if caught := recover(); caught != nil {
			w.logPanic(service, caught)
			err = errPanicked
		}
	}()
	address, err = wake.find(ctx)
	wake.report(err)
	return address, err
}

func (w *Waker) logPanic(service gateway.Service, caught any) {
	w.Logger.Error("a wake panicked", "namespace", service.Namespace, "cluster", service.Cluster, "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
}

// look reads what is known of the Service and its cluster.
func (w *Waker) read(ctx context.Context, service gateway.Service) (*snapshot, error) {
	name := clusterOf(service)
	cluster, err := w.Informers.Cluster(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	seen := &snapshot{cluster: cluster, view: plan.View(cluster, time.Now())}
	services, err := w.Informers.Services(ctx, name)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(services, func(s corev1.Service) bool { return s.UID == service.UID })
	if at < 0 {
		return nil, fmt.Errorf("find Service %s/%s: %w", service.Namespace, service.Name, ErrGone)
	}
	seen.service = &services[at]
	if seen.pods, err = w.Informers.Pods(ctx, name); err != nil {
		return nil, err
	}
	seen.slices, err = w.Informers.Slices(ctx, name, services[at:at+1])
	return seen, err
}

// switchOff turns the switch off, on the state that was read, and returns what it wrote of who woke the cluster, nothing if it
// was not this call that did. Meanwhile another replica or a person may have, or may have had a different wish: then nothing is
// written.
func (w *Waker) switchOff(ctx context.Context, seen *snapshot, service gateway.Service, client gateway.Client) (string, error) {
	recorded := "" // of this call: another that waits for it has written nothing
	_, err, _ := w.switching.Do(clusterOf(service).String(), func() (any, error) {
		value, err := lastWake(service, client)
		if err != nil {
			return nil, err
		}
		cluster, pods := seen.cluster, len(seen.pods)
		for next(plan.View(cluster, time.Now()), pods) == stepSwitch {
			err := w.patch(ctx, cluster, value)
			if err == nil {
				recorded = value
			}
			if !apierrors.IsConflict(err) {
				return nil, err
			}
			cluster = new(cnpgv1.Cluster)
			if err := w.APIReader.Get(ctx, clusterOf(service), cluster); err != nil {
				return nil, fmt.Errorf("read Cluster %s: %w", clusterOf(service), err)
			}
		}
		return nil, nil
	})
	return recorded, err
}
