package wake

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// A node that loses its power stays Ready for Kubernetes until its lease ends, 40 s and more. So the replicas probe
// each other.
const (
	probeEvery, probeTimeout = time.Second, time.Second
	// A replica counts as dead after deadAfter consecutive probes without an answer, over at least silentFor.
	deadAfter, silentFor = 3, 3 * time.Second
	// mostDoublings limits how often the wait doubles for a replica that counted as dead and answered later: it or the
	// network is slow, and each time its slices are deleted and recreated. The wait stays bounded, because it may
	// really die.
	mostDoublings = 2
	// yieldFor is how much longer the replica with the greater UID waits. Otherwise two live replicas that do not reach
	// each other would delete each other's slices at once, and none would be left until they are recreated.
	yieldFor = 2 * time.Second
)

// peers probes the other replicas, and the API server.
type peers struct {
	*Access
	ask    func(ctx context.Context, replica netip.Addr) error
	slices *router
	silent chan event.GenericEvent   // the pods of replicas that count as dead
	heard  atomic.Pointer[time.Time] // when the API server last answered
}

// probes is what came of a replica's probes of another.
type probes struct {
	answered bool // ever: a network that blocks all probes says nothing about the replica
	failed   int  // since the last answer
	since    time.Time
	// judged says that it has been taken for dead since, and misjudged how often it answered after that.
	judged    bool
	misjudged int
}

// after adds a probe that began then.
func (p probes) after(answered bool, began time.Time) probes {
	if answered {
		if p.judged {
			p.misjudged++
		}
		return probes{answered: true, misjudged: p.misjudged}
	}
	if p.failed == 0 {
		p.since = began
	}
	p.failed++
	return p
}

// dead reports whether the replica is to be taken for dead after so long a silence.
func (p probes) dead(silence time.Duration, now time.Time) bool {
	return p.answered && p.failed >= deadAfter && now.Sub(p.since) >= silence
}

// isSpare reports whether a Service can do without another replica's slice: it is not to lead to the gateway, or it
// leads here or to its own endpoints too.
func (r *router) isSpare(seen *snapshot, planned plan.Plan, slice *discoveryv1.EndpointSlice) bool {
	uid := endpointslice.ServiceOf(slice)
	if !slices.Contains(planned.Lead, uid) {
		return true
	}
	for i := range seen.services {
		if service := &seen.services[i]; service.UID == uid && endpointslice.Serves(service, slice.AddressType, seen.slices) {
			return true
		}
	}
	return slices.ContainsFunc(seen.slices, func(other discoveryv1.EndpointSlice) bool {
		return r.isOwn(other) && endpointslice.ServiceOf(&other) == uid && other.AddressType == slice.AddressType
	})
}

// ProbePeers probes the other replicas that clients are led to, every second until the context ends. When one is taken
// for dead, its clusters are reconciled.
func (p *peers) ProbePeers(ctx context.Context) {
	known := map[types.UID]probes{}
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		if err := p.probePeers(ctx, known); err != nil && ctx.Err() == nil {
			p.Logger.Warn("cannot probe the other replicas", "error", err.Error())
		}
	}, probeEvery)
}

// probePeers probes each once, all at the same time, and keeps the results. It probes itself by the same way: a replica
// that is slow to answer itself, or has had no answer from the API server, judges nobody.
func (p *peers) probePeers(ctx context.Context, known map[types.UID]probes) error {
	pods, err := p.readReplicas(ctx)
	if err != nil {
		return err
	}
	maps.DeleteFunc(known, func(uid types.UID, _ probes) bool { return pods[uid] == nil })
	if err := p.keepLeading(ctx, pods); err != nil {
		return err
	}
	for uid, of := range known {
		if pods[uid] == nil { // a silence begins with a probe, not with the last one of an hour ago
			of.failed = 0
			known[uid] = of
		}
	}
	began := time.Now()
	own := p.Settings.Replica.UID
	answers := p.askAll(ctx, pods)
	took, answered := answers[own]
	if ctx.Err() != nil || !answered || took > probeTimeout/2 {
		return nil // nobody was given the time to answer
	}
	delete(pods, own)
	for uid := range pods {
		_, answered := answers[uid]
		if answered && known[uid].judged {
			p.slices.condemned.DeleteFunc(func(_ types.UID, of condemned) bool { return of.silent == uid })
		}
		known[uid] = known[uid].after(answered, began)
	}
	for uid, pod := range pods {
		if known[uid], err = p.judge(ctx, pod, known[uid]); err != nil {
			return err
		}
	}
	return nil
}

// keepLeading keeps the replicas that slices lead to, and this one.
func (p *peers) keepLeading(ctx context.Context, pods replicas) (err error) {
	maps.DeleteFunc(pods, func(uid types.UID, _ *corev1.Pod) bool {
		if uid == p.Settings.Replica.UID {
			return false
		}
		leads, failed := p.Informers.Leads(ctx, uid)
		err = errors.Join(err, failed)
		return !leads
	})
	return err
}

// askAll asks the API server and the replicas, and returns how long those took that answered.
func (p *peers) askAll(ctx context.Context, pods replicas) map[types.UID]time.Duration {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var mutex sync.Mutex
	var group sync.WaitGroup
	answered := map[types.UID]time.Duration{}
	began := time.Now()
	group.Go(func() { p.askAPIServer(ctx) })
	for uid, pod := range pods {
		group.Go(func() {
			address, err := netip.ParseAddr(pod.Status.PodIP)
			if err == nil {
				err = p.ask(ctx, address)
			}
			if err != nil {
				return
			}
			mutex.Lock()
			defer mutex.Unlock()
			answered[uid] = time.Since(began)
		})
	}
	group.Wait()
	return answered
}

// judge condemns the slices of a replica that counts as dead. Slices that it creates later prove that it is alive, and
// stay until it has answered and fallen silent again.
func (p *peers) judge(ctx context.Context, pod *corev1.Pod, of probes) (probes, error) {
	silence := silentFor << min(of.misjudged, mostDoublings)
	if p.Settings.Replica.UID > pod.UID {
		silence += yieldFor
	}
	if of.judged || !of.dead(silence, time.Now()) {
		return of, nil
	}
	routed, err := p.Informers.SlicesOf(ctx, pod.UID)
	if err != nil {
		return of, err
	}
	for i := range routed {
		p.slices.condemned.Set(routed[i].UID, condemned{silent: pod.UID})
	}
	of.judged = true
	p.Logger.Warn("a replica does not answer; its clients are no longer routed to it", "pod", pod.Name, "since", of.since, "slices", len(routed))
	select {
	case p.silent <- event.GenericEvent{Object: pod}:
	case <-ctx.Done():
	}
	return of, nil
}

// staleAfter is how long the API server may be silent before the informers are too old to route a client by: an
// instance's address may belong to another tenant's pod by then.
const staleAfter = 30 * time.Second

// askAPIServer reads this replica's own pod. NotFound counts as an answer. Forbidden does not, because without the
// right to read the informers learn nothing either.
func (p *peers) askAPIServer(ctx context.Context) {
	err := p.APIReader.Get(ctx, client.ObjectKey{Namespace: p.Settings.Replica.Namespace, Name: p.Settings.Replica.Pod}, &corev1.Pod{})
	if client.IgnoreNotFound(err) != nil {
		return
	}
	now := time.Now()
	p.heard.Store(&now)
}

// Stale reports whether the API server has not answered for so long, or never has, that what is known of the clusters
// may be wrong. Other replicas then lead the clients.
func (p *peers) Stale() bool {
	at := p.heard.Load()
	return at == nil || time.Now().Round(0).Sub(at.Round(0)).Abs() > staleAfter // the node may have been suspended
}
