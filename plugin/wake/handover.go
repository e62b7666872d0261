package wake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// answersWithin limits how long a Service may take to route a connection here, and an instance to accept one. The
	// first Service gets firstWithin, because it also waits for kube-proxy.
	answersWithin, firstWithin = 3 * time.Second, 6 * time.Second
	// dialInterval is the pause between test connections, and dialTimeout limits each: kube-proxy chooses among all
	// endpoints at random. Each that reaches an instance costs it a process.
	dialInterval, dialTimeout = 50 * time.Millisecond, 300 * time.Millisecond
	// maxConcurrentTries is how many Services and instances of a cluster are tried at once. If all tries take longer
	// than 20 s, the sidecar withdraws the announcement, and makes another later.
	maxConcurrentTries = 16
	// acknowledgeInterval is the pause after an acknowledgement that failed.
	acknowledgeInterval = 500 * time.Millisecond
)

// ErrNotLed means that a Service does not lead to this replica although it has the slice. If the cluster were put to
// sleep, nobody could wake it.
var ErrNotLed = errors.New("no connection through the Service has arrived")

// errUnreachable means that this replica cannot pass a client on to an instance, as behind a NetworkPolicy that does
// not admit it.
var errUnreachable = errors.New("it accepts no connection from the plugin's pod")

// errNoAddress means that the instances have addresses of a family of which this pod has none.
var errNoAddress = errors.New("this pod has no address of that family, and the instances have")

// handovers are the announcements that are being or have been answered, by cluster.
type handovers struct {
	*Access
	dial func(ctx context.Context, address string) (net.Conn, error)

	current keyed.Map[types.NamespacedName, handover]
	running sync.WaitGroup
}

type handover struct {
	announcement string
	cancel       context.CancelFunc
}

// forget cancels the current answer, because nothing is announced any more.
func (h *handovers) forget(cluster types.NamespacedName) {
	h.current.Change(cluster, func(current *handover) bool {
		if current.cancel != nil {
			current.cancel()
		}
		return false
	})
}

// begin answers an announcement once, in the background.
func (h *handovers) begin(ctx context.Context, seen *snapshot, announcement string, routes []routed) {
	parsed, err := contract.ParseAnnouncement(announcement)
	if err != nil {
		return
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), parsed.Deadline)
	answered := false
	h.current.Change(seen.name, func(current *handover) bool {
		if answered = current.announcement == announcement; !answered {
			if current.cancel != nil {
				current.cancel()
			}
			*current = handover{announcement, cancel}
		}
		return true
	})
	if answered {
		cancel()
		return
	}
	h.running.Go(func() {
		defer cancel()
		logger := h.Logger.With("namespace", seen.name.Namespace, "cluster", seen.name.Name)
		switch err := h.handOver(ctx, seen, announcement, routes); {
		case err == nil:
			logger.Info("the announcement is acknowledged")
		case errors.Is(err, errNotMeant), errors.Is(err, context.Canceled):
			logger.Debug("the announcement needs no answer any more")
		default:
			logger.Warn("the announcement is not acknowledged: the cluster stays awake", "error", err.Error())
			if errors.Is(err, errUnreachable) {
				h.recordUnreachable(ctx, seen, err)
			}
		}
	})
}

// recordUnreachable writes an Event if no acknowledgement was possible because of the network.
func (h *handovers) recordUnreachable(ctx context.Context, seen *snapshot, cause error) {
	if err := h.Events.Write(ctx, seen.cluster, plan.Event{
		Warning: true, Reason: "InstanceUnreachable", Occasion: cause.Error(),
		Message: fmt.Sprintf("Plugin pod %s cannot take over the clients of the cluster: %v. Unless another replica can, the cluster stays awake", h.Settings.Replica.Pod, cause),
	}, time.Now()); err != nil {
		h.Logger.Warn("cannot write why an announcement is not acknowledged", "namespace", seen.name.Namespace, "cluster", seen.name.Name, "error", err.Error())
	}
}

// handOver proves that every Service leads here and that the instances can be reached from here, gives the other nodes
// time, and acknowledges.
func (h *handovers) handOver(ctx context.Context, seen *snapshot, announcement string, routes []routed) error {
	// The first try must show that kube-proxy knows our slices. Through a Service with session affinity it may not.
	if at := slices.IndexFunc(routes, func(l routed) bool { return !l.pinned() }); at > 0 {
		routes[0], routes[at] = routes[at], routes[0]
	}
	var tries []func(context.Context) error
	for _, l := range routes {
		for _, address := range endpointslice.Addresses(l.service) {
			switch family := endpointslice.FamilyOf(address.Addr()); {
			case slices.ContainsFunc(l.wanted, func(s discoveryv1.EndpointSlice) bool { return s.AddressType == family }):
				within := answersWithin
				if len(tries) == 0 {
					within = firstWithin
				}
				tries = append(tries, func(ctx context.Context) error {
					if err := h.arrives(ctx, l, address, within); err != nil {
						return fmt.Errorf("reach the gateway through Service %s at %s: %w", l.service.Name, address, err)
					}
					return nil
				})
			case endpointslice.Serves(l.service, family, seen.slices): // otherwise nobody is served there, asleep or awake
				return fmt.Errorf("lead Service %s at %s to the gateway: %w", l.service.Name, address, errNoAddress)
			}
		}
	}
	for _, instance := range instancesBehind(routes, seen.slices) {
		tries = append(tries, func(ctx context.Context) error { return h.accepts(ctx, instance) })
	}
	group, grouped := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrentTries)
	for i, try := range tries {
		// kube-proxy applies the slices of all Services together. Until then each try costs PostgreSQL processes, so
		// only one Service is tried.
		if i == 0 {
			if err := try(grouped); err != nil {
				return err
			}
			continue
		}
		group.Go(func() error { return try(grouped) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for the other nodes: %w", ctx.Err())
	case <-time.After(h.Settings.HandoverWait):
	}
	return h.acknowledge(ctx, seen.name, announcement)
}

// arrives connects to the Service until a connection of the address's family has arrived, no matter whose. It sends
// nothing: such a connection wakes no cluster, and PostgreSQL does not log it.
//
// A Service with session affinity may keep leading this pod to an instance for hours, so no connection may ever arrive.
// For such a Service it is enough that anything answers: the cluster's other Services prove that the node's kube-proxy
// knows our slices.
func (h *handovers) arrives(ctx context.Context, l routed, address netip.AddrPort, within time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, ErrNotLed)
	defer cancel()
	arrived := l.openPort.acceptNotifier.arrived.Listen(endpointslice.FamilyOf(address.Addr()))
	for {
		if answered := h.try(ctx, address); answered && l.pinned() {
			return nil
		}
		select {
		case <-arrived:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(dialInterval):
		}
	}
}

// pinned reports whether the Service has session affinity.
func (l routed) pinned() bool {
	return l.service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
}

// instancesBehind returns the instances that serve the clients of the Services now.
func instancesBehind(routes []routed, all []discoveryv1.EndpointSlice) []netip.AddrPort {
	var found []netip.AddrPort
	for _, l := range routes {
		for _, address := range endpointslice.Ready(l.service, all) {
			found = append(found, netip.AddrPortFrom(address, contract.PostgresPort))
		}
	}
	slices.SortFunc(found, netip.AddrPort.Compare)
	return slices.Compact(found)
}

// accepts connects to an instance until it accepts a connection, which sends nothing either.
func (h *handovers) accepts(ctx context.Context, instance netip.AddrPort) error {
	if wait.PollUntilContextTimeout(ctx, dialInterval, answersWithin, true, func(ctx context.Context) (bool, error) { return h.try(ctx, instance), nil }) != nil {
		return fmt.Errorf("connect to instance %s: %w", instance, cmp.Or(context.Cause(ctx), errUnreachable))
	}
	return nil
}

// try connects once, and reports whether anything answered. If nothing does, the next attempt may be routed elsewhere.
func (h *handovers) try(ctx context.Context, address netip.AddrPort) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := h.dial(ctx, address.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// errNotMeant means that the announcement was withdrawn, has expired, or was acknowledged by another replica.
var errNotMeant = errors.New("the announcement is not the Cluster's any more, or is acknowledged")

// confirmHolding confirms the announcement of a doze a second time; empty: none is to be.
func (c *Controller) confirmHolding(ctx context.Context, seen *snapshot, announcement string) error {
	if announcement == "" {
		return nil
	}
	c.Logger.Info("the gateway holds every client of a cluster that is about to doze", "namespace", seen.name.Namespace, "cluster", seen.name.Name)
	return ignoreConflict(waker.Annotate(ctx, c.Client, seen.cluster, map[string]*string{contract.AnnotationGatewayHolding: &announcement}))
}

// acknowledge acknowledges exactly that announcement, with optimistic locking.
func (h *handovers) acknowledge(ctx context.Context, name types.NamespacedName, announcement string) error {
	cluster, err := h.Informers.Cluster(ctx, name)
	if err != nil {
		return err
	}
	for {
		view := plan.View(cluster, time.Now())
		if plan.Decide(plan.State{Cluster: view}, time.Now()).Acknowledge != announcement {
			return errNotMeant
		}
		err := waker.Annotate(ctx, h.Client, cluster, map[string]*string{contract.AnnotationGatewayReady: &announcement})
		switch {
		case err == nil, apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			return err
		case !apierrors.IsConflict(err): // nobody else answers if this is the only replica
			pause(ctx, acknowledgeInterval)
		}
		cluster = new(cnpgv1.Cluster)
		if wait.PollUntilContextCancel(ctx, acknowledgeInterval, true, func(ctx context.Context) (bool, error) {
			return h.APIReader.Get(ctx, name, cluster) == nil, nil
		}) != nil {
			return err
		}
	}
}
