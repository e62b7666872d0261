package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cnpg-i/scale-to-zero/plugin/config"
	"github.com/cnpg-i/scale-to-zero/plugin/metrics"
	"github.com/cnpg-i/scale-to-zero/plugin/wake"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

// wakeGateway is the gateway with its dependencies.
type wakeGateway struct {
	controller *wake.Controller
	backend    *waker.Waker
	metrics    *metrics.Wake
	// setHeld sets how many clients can wait by the number of clusters, at most room; nil if a setting does.
	setHeld func(most int)
	room    int
}

// reach is how other replicas, Services and instances are reached.
type reach struct {
	ask  func(ctx context.Context, replica netip.Addr) error
	dial func(ctx context.Context, address string) (net.Conn, error)
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", address)
}

// newWakeGateway makes the gateway and its controller, or returns nil if the settings leave it off. The context must
// outlive the sessions that are drained when the plugin stops.
func newWakeGateway(ctx context.Context, c *config.Gateway, to reach, manager ctrl.Manager, recorder record.EventRecorder, logger *slog.Logger) (*wakeGateway, error) {
	if c == nil {
		logger.Warn("the wake gateway is off because POD_NAME is not set: only clusters with xata.io/scale-to-zero-wake=manual sleep")
		return nil, nil
	}
	reader, err := informers.Watch(ctx, manager.GetCache(), manager.GetClient(), logger)
	if err != nil {
		return nil, err
	}
	entry, err := gateway.NewOpener()
	if err != nil {
		return nil, err
	}
	if entry.Most() < c.Ports.Count() {
		logger.Warn("the limit of file descriptors, RLIMIT_NOFILE, is too low for every port of GATEWAY_PORTS", "ports", c.Ports.Count(), "descriptors", entry.Most())
	}
	kind, err := events.KindOf(&cnpgv1.Cluster{}, manager.GetClient())
	if err != nil {
		return nil, err
	}
	counts := metrics.NewWake(ctrlmetrics.Registry, c.Ports.Count(), c.WakeTimeout)
	notifier, stopping := &waker.Notifier{}, &waker.Stopping{}
	tell := &events.Writer{Client: manager.GetClient(), Pod: c.Replica.Pod}
	sidecars := waker.NewSidecars(logger)
	prober := &waker.Prober{Sidecars: sidecars}
	budget := waker.NewBudget(c.WakeSourceBurst, c.WakeBurst, c.WakeRate)
	backend := &waker.Waker{
		Informers: reader, APIReader: manager.GetAPIReader(), Client: manager.GetClient(), Notifier: notifier,
		Stopping: stopping,
		Probe:    prober.AcceptsSessions, Listens: prober.Listens, PasswordSet: sidecars.PasswordSet, Signal: prober.Signal,
		NodesWait: c.HandoverWait, Sidecars: sidecars, Events: tell, Recorder: recorder,
		Observer: counts, Logger: logger, Budget: budget, PodSearches: semaphore.NewWeighted(waker.PodSearches),
		Allowed: c.Allow, Addresses: c.Replica.Addresses, Limit: c.WakeTimeout, Base: ctx,
	}
	clients := gateway.New(limits(c), "clusters."+kind.Group, backend, counts, logger)
	controller := wake.New(wake.Access{
		Settings: wake.Settings{
			Replica: c.Replica, HandoverWait: c.HandoverWait, HibernatedBy: c.HibernatedBy, WakeTimeout: c.WakeTimeout,
			DrainTimeout: c.DrainTimeout,
		},
		Client: manager.GetClient(), Informers: reader, APIReader: manager.GetAPIReader(), Events: tell, Logger: logger,
	}, wake.Network{
		Ports: &ports.Store{
			Client: manager.GetClient(), APIReader: manager.GetAPIReader(), Namespace: c.Replica.Namespace, Range: c.Ports,
			Named: reader.Naming,
		},
		Gateway: clients,
		Listen:  entry.Listen, Dial: to.dial, Ask: to.ask, Notifier: notifier, Stopping: stopping, Budget: budget,
		Observer: counts,
	})
	backend.Stale = controller.Stale
	if err := controller.SetupWithManager(manager); err != nil {
		return nil, err
	}
	g := &wakeGateway{controller: controller, backend: backend, metrics: counts, room: limits(c).Room(entry.Most(), c.Ports.Count())}
	if c.Held == 0 {
		g.setHeld = clients.SetHeld
	}
	for _, run := range []func(context.Context){g.sweep, controller.ProbePeers} {
		if err := manager.Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error { run(ctx); return nil })); err != nil {
			return nil, fmt.Errorf("add to the controller manager: %w", err)
		}
	}
	return g, nil
}

// limits returns the gateway's default limits, but a client is held for as long as a wake may take.
func limits(c *config.Gateway) gateway.Limits {
	limits := gateway.DefaultLimits()
	limits.HeldFor, limits.Held = c.WakeTimeout, cmp.Or(c.Held, limits.Held)
	return limits
}

// stale reports whether clients should be led to other replicas. Without a gateway none is led here.
func (g *wakeGateway) stale() bool { return g != nil && g.controller.Stale() }

// sweep frees ports until the context ends.
func (g *wakeGateway) sweep(ctx context.Context) {
	g.controller.Sweep(ctx, func(ports int) {
		g.metrics.PortsUsed(ports)
		if clusters, err := g.controller.Informers.Clusters(ctx, ""); err == nil {
			g.setFleet(len(clusters))
		}
	})
}

// setFleet adapts what is not set to the number of clusters.
func (g *wakeGateway) setFleet(clusters int) {
	g.backend.Budget.SetFleet(clusters)
	if g.setHeld != nil {
		g.setHeld(max(gateway.DefaultLimits().Held, min(clusters, g.room)))
	}
}
