// Package waker wakes clusters for their clients, and finds the instance that serves them.
//
// There is one wake for each Service, however many clients wait. Hibernation is turned off once, however many Services
// have waiting clients. Across replicas the API server ensures that, because the patch applies only to the state that
// was read. Hibernation is never turned off before the operator has deleted every pod, nor where a person put the
// cluster to sleep.
//
// A cluster that dozes is woken by lifting its fence, but only after PostgreSQL has stopped, and only if the fence is
// this project's.
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
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Result is how a wake ended.
type Result string

const (
	// ResultSuccess means that an instance accepts sessions.
	ResultSuccess Result = "success"
	// ResultTimeout means that none did in time.
	ResultTimeout Result = "timeout"
	// ResultByHand means that only people may wake the cluster.
	ResultByHand Result = "by_hand"
	// ResultMaintenance means that the operator might delete volumes during a wake.
	ResultMaintenance Result = "maintenance"
)

// Results returns all results.
func Results() []Result {
	return []Result{ResultSuccess, ResultTimeout, ResultByHand, ResultMaintenance}
}

// Depth is what a cluster was woken from.
type Depth string

const (
	// DepthHibernation means that it had no pod.
	DepthHibernation Depth = "hibernation"
	// DepthDoze means that only PostgreSQL was stopped.
	DepthDoze Depth = contract.DepthDoze
)

// Depths returns all depths.
func Depths() []Depth { return []Depth{DepthHibernation, DepthDoze} }

// Observer is notified how each wake ended, and how long it took since what began it.
type Observer interface {
	Woke(cluster types.NamespacedName, by contract.Cause, from Depth, result Result, took time.Duration)
	// Queued reports a change, 1 or -1, in the number of wakes that wait for the budget.
	Queued(change int)
}

// errNobodyWaits means that every client has left, so nothing is woken.
var errNobodyWaits = errors.New("no client waits any more")

// errPanicked means that a search hit a bug in this program.
var errPanicked = errors.New("the search for an instance panicked")

// Waker is the gateway's [gateway.Backend].
type Waker struct {
	// Informers reads caches, APIReader reads from the API server, and Client writes to it.
	Informers informers.Reader
	APIReader client.Reader
	Client    client.Client
	// Notifier says when something about a cluster has changed.
	Notifier *Notifier
	// Stopping remembers which clusters may be stopping.
	Stopping *Stopping
	// Probe reports whether an instance accepts sessions; it is [Prober.AcceptsSessions] outside of tests.
	Probe func(context.Context, netip.AddrPort) bool
	// Listens reports whether PgBouncer accepts connections; it is [Prober.Listens] outside of tests.
	Listens func(context.Context, netip.AddrPort) bool
	// PasswordSet reports whether the role's password has been set since PostgreSQL's last checkpoint; it is
	// [Sidecars.PasswordSet] outside of tests.
	PasswordSet func(ctx context.Context, instance netip.Addr, role string) bool
	// Signal makes an instance count the client as activity; it is [Prober.Signal] outside of tests.
	Signal func(ctx context.Context, instance, client netip.AddrPort)
	// Sidecars receive the client addresses of the gateway's connections.
	Sidecars *Sidecars
	// Events writes who woke a cluster; Recorder writes other Events.
	Events   *events.Writer
	Recorder record.EventRecorder
	Observer Observer
	Logger   *slog.Logger
	// Allowed are the networks whose clients are served.
	Allowed []netip.Prefix
	// Addresses are those of this pod, one of each family that it has.
	Addresses []netip.Addr
	// Limit is how long a client waits. A search continues while any client waits.
	Limit time.Duration
	// Stale reports whether the informers may be so far behind that an address which they have is another pod's.
	Stale func() bool
	// NodesWait is how long the kube-proxies of other nodes get to learn that a Service no longer leads here.
	NodesWait time.Duration
	// Base is the parent context of all wakes.
	Base context.Context // a wake outlives the client that began it, and not the plugin

	// Budget limits how many wakes may begin, and PodSearches how many searches for the pod of an address run at once.
	Budget      *Budget
	PodSearches *semaphore.Weighted

	changing, peers singleflight.Group
	searches        searches
	ongoing         keyed.Map[types.NamespacedName, ongoing]
	// unsent are the addresses that sidecars have not accepted yet, by instance. A goroutine for each sends them.
	unsent keyed.Map[netip.Addr, []unsent]
}

var _ gateway.Backend = (*Waker)(nil)

func clusterOf(service gateway.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: service.Namespace, Name: service.Cluster}
}

// Refuses reports whether a client is not served, whatever it wants. If that cannot be read, the client is served.
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
	if slices.ContainsFunc(w.Stopping.View(cluster, time.Now()).Policy.Ignore, func(p idle.Pattern) bool { return p.MatchesUnseen(address) }) {
		return gateway.RefusalIgnored
	}
	return ""
}

// Running returns the instances behind the Service that serve it, or none while all clients are held. It never wakes
// the cluster.
func (w *Waker) Running(ctx context.Context, service gateway.Service) []netip.AddrPort {
	seen, err := w.read(ctx, service)
	if err != nil || seen.view.HoldsAll() {
		return nil
	}
	return seen.targets()
}

// MustReconnect reports whether a session of the client must not come from the gateway's address to a running instance.
// It reports true if it cannot read the state.
func (w *Waker) MustReconnect(service gateway.Service, peer netip.AddrPort) bool {
	seen, err := w.read(w.Base, service)
	return err != nil || slices.ContainsFunc(seen.targets(), func(target netip.AddrPort) bool {
		return w.barred(w.Base, seen, target.Addr(), peer.Addr().Unmap())
	})
}

// Resolve wakes the cluster if it sleeps, and returns an instance behind the Service that accepts sessions. Its errors
// are [gateway.ErrAsleepByHand], [gateway.ErrMaintenance], [gateway.ErrReconnect], [gateway.ErrTimeout],
// [gateway.ErrGone] and those of the context.
//
// Every client waits for the full [Waker.Limit], even if it joins a search late.
func (w *Waker) Resolve(ctx context.Context, service gateway.Service, client gateway.Client) (netip.AddrPort, error) {
	until := time.Now().Add(w.Limit)
	ctx, cancel := context.WithDeadlineCause(ctx, until, gateway.ErrTimeout)
	defer cancel()
	defer w.searches.add(service.UID, client)()
	for {
		found := w.searches.join(service.UID, until, func() (netip.AddrPort, error) { return w.search(service, client) }) //nolint:contextcheck // the search is everybody's who waits, not this client's
		select {
		case <-ctx.Done():
			return netip.AddrPort{}, context.Cause(ctx)
		case <-found.ended:
			if errors.Is(found.err, errNobodyWaits) || errors.Is(found.err, gateway.ErrTimeout) && time.Now().Before(until) {
				continue // the search ended just as this client joined
			}
			if found.err != nil {
				return netip.AddrPort{}, found.err
			}
			switch err := w.admit(ctx, service, client, found.address); {
			case err == nil:
				return found.address, nil
			case ctx.Err() != nil:
				return netip.AddrPort{}, context.Cause(ctx)
			case errors.Is(err, gateway.ErrReconnect), isFinal(err):
				return netip.AddrPort{}, err
			case !errors.Is(err, errAsleepAgain): // its cluster cannot be read
				w.Logger.Debug("a client waits, because its cluster cannot be read",
					"namespace", service.Namespace, "cluster", service.Cluster, "error", err.Error())
				select {
				case <-ctx.Done():
					return netip.AddrPort{}, context.Cause(ctx)
				case <-time.After(readAgain):
				}
			}
		}
	}
}

// admit returns nil if the client's session may go through the gateway to the instance. Otherwise it waits until the
// client can connect to PostgreSQL directly.
func (w *Waker) admit(ctx context.Context, service gateway.Service, client gateway.Client, instance netip.AddrPort) error {
	seen, err := w.read(ctx, service)
	if err == nil && w.barred(ctx, seen, instance.Addr(), client.Peer.Addr().Unmap()) {
		return w.awaitDirect(ctx, service, client.Peer)
	}
	return err
}

// holdsWithin limits the last check of whether all clients are held, before a session begins. Including the latency of
// the session's first byte, it is shorter than the sidecar's wait between the confirmation and its last sample.
const holdsWithin = 500 * time.Millisecond

// MayBegin reports whether a session may begin. While a doze is announced, it asks the API server: another replica may
// have confirmed that all clients are held, and one with late informers must not pass a client to a PostgreSQL that is
// about to be fenced. Without an answer the client is held.
func (w *Waker) MayBegin(ctx context.Context, service gateway.Service) bool {
	seen, err := w.read(ctx, service)
	if err != nil || seen.view.HoldsAll() || !seen.view.DozeAnnounced {
		return err == nil && !seen.view.HoldsAll()
	}
	ctx, cancel := context.WithTimeout(ctx, holdsWithin)
	defer cancel()
	var cluster cnpgv1.Cluster
	if err := w.APIReader.Get(ctx, clusterOf(service), &cluster); err != nil {
		w.Logger.Warn("cannot tell whether a cluster is about to doze; its clients wait", "namespace", service.Namespace, "cluster", service.Cluster, "error", err.Error())
		return false
	}
	return !plan.View(&cluster, time.Now()).HoldsAll()
}

// CountAsActive makes the instances that are ready count the peer as activity.
func (w *Waker) CountAsActive(ctx context.Context, service gateway.Service, peer netip.AddrPort) {
	if seen, err := w.read(ctx, service); err == nil {
		w.signalInstances(ctx, seen, peer)
	}
}

// search finds an instance of the Service for all clients that wait for one. It outlives the client that started it. A
// panic ends only this search, not the process.
func (w *Waker) search(service gateway.Service, client gateway.Client) (address netip.AddrPort, err error) {
	ctx, cancel := context.WithCancel(w.Base)
	defer cancel()
	wake := &wake{
		Waker: w, service: service, client: client, phases: phases{began: time.Now()}, depth: DepthHibernation,
		probed: make(chan probed, 1), signalled: map[netip.Addr]string{},
	}
	w.ongoing.Change(clusterOf(service), func(of *ongoing) bool { of.searches++; return true })
	defer w.ongoing.Change(clusterOf(service), func(of *ongoing) bool { of.searches--; return of.searches != 0 })
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

// read reads the state of the Service and its cluster.
func (w *Waker) read(ctx context.Context, service gateway.Service) (*snapshot, error) {
	name := clusterOf(service)
	cluster, err := w.Informers.Cluster(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", gateway.ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	seen := &snapshot{cluster: cluster}
	stale := w.Stale()
	if stale {
		if err := w.readLive(ctx, name, seen); err != nil {
			return nil, err
		}
	}
	seen.view = w.Stopping.View(seen.cluster, time.Now())
	services, err := w.Informers.Services(ctx, name)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(services, func(s corev1.Service) bool { return s.UID == service.UID })
	if at < 0 {
		return nil, fmt.Errorf("find Service %s/%s: %w", service.Namespace, service.Name, gateway.ErrGone)
	}
	seen.service = &services[at]
	if !stale {
		if seen.pods, err = w.Informers.Pods(ctx, name); err != nil {
			return nil, err
		}
	}
	seen.behind = seen.service
	of := services[at : at+1 : at+1]
	if endpointslice.PoolerOf(seen.service) != "" {
		if err := w.readPooler(ctx, seen, services, stale); err != nil {
			return nil, err
		}
		of = append(of, *seen.behind)
	}
	if seen.slices, err = w.Informers.Slices(ctx, name, of); err != nil {
		return nil, err
	}
	if len(endpointslice.Ready(seen.behind, seen.slices)) == 0 && w.Stopping.mayStop(name, time.Now()) {
		seen.view.MayStillStop = true
	}
	return seen, nil
}

// readLive reads the Cluster, its instances and the pods of its Poolers from the API server. While that does not
// answer, the clients wait.
func (w *Waker) readLive(ctx context.Context, name types.NamespacedName, seen *snapshot) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	cached, live := seen.cluster, new(cnpgv1.Cluster)
	if err := w.APIReader.Get(ctx, name, live); err != nil {
		return fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if live.UID != cached.UID {
		return fmt.Errorf("read Cluster %s: %w", name, gateway.ErrGone)
	}
	var pods corev1.PodList
	of := client.MatchingLabels{endpointslice.LabelCluster: name.Name}
	if err := w.APIReader.List(ctx, &pods, client.InNamespace(name.Namespace), of); err != nil {
		return fmt.Errorf("list the instances of Cluster %s: %w", name, err)
	}
	seen.cluster = live
	for i := range pods.Items {
		switch pod := &pods.Items[i]; {
		case endpointslice.IsInstance(pod):
			seen.pods = append(seen.pods, *pod)
		case endpointslice.IsPooler(pod):
			seen.bouncers = append(seen.bouncers, *pod)
		}
	}
	return nil
}
