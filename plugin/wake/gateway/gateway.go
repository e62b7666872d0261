// Package gateway answers for the Services of sleeping clusters. It finds out whether who connects is a client, holds it while
// its cluster wakes, and then passes its session through to the instance byte for byte: TLS stays between the two, and so do
// passwords.
//
// It decides nothing about clusters: a [Backend] says who may come, wakes, and says where sessions go. A connection goes
// through these steps, and holds one slot of a limited number in each:
//
//	starting  its startup packet is read, within limits; most of what scans a network ends here and woke nothing
//	held      the backend wakes the cluster; the client hears nothing, since PostgreSQL's protocol has nothing to say
//	          before the server does, and leaves at once when it hangs up
//	spliced   the kernel moves the bytes both ways until both sides have ended
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Gateway serves any number of Services.
type Gateway struct {
	limits   Limits
	clusters string
	backend  Backend
	observer Observer
	logger   *slog.Logger

	starting, held *limiter
	spliced        *sessions

	// cut ends when everybody who is served must leave, with errClosed as its cause.
	cut    context.Context
	cutAll context.CancelCauseFunc
	// work counts the goroutines.
	work sync.WaitGroup

	mutex     sync.Mutex
	listeners map[types.UID][]*serviceListener
	draining  bool
}

// serviceListener is a listener of a Service.
type serviceListener struct {
	service  Service
	listener Listener
}

// New makes a gateway that serves nothing yet. clusters is what kubectl calls the Cluster's kind, such as
// "clusters.postgresql.cnpg.io": people are told how to wake one.
func New(limits Limits, clusters string, backend Backend, observer Observer, logger *slog.Logger) *Gateway {
	cut, cutAll := context.WithCancelCause(context.Background())
	return &Gateway{
		limits: limits, clusters: clusters, backend: backend, observer: observer, logger: logger,
		starting: newLimiter(limits.Starting, true), held: newLimiter(limits.Held, false), spliced: newSessions(limits.Spliced),
		cut: cut, cutAll: cutAll,
		listeners: map[types.UID][]*serviceListener{},
	}
}

// Open serves the Service on the listener, of which a Service may have several: one for each address family. The listener
// is the gateway's from then on. After Drain it is closed at once, and so it is where nobody can wait at it, which is the error.
func (g *Gateway) Open(service Service, listener Listener) error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.draining {
		_ = listener.Close()
		return nil
	}
	d := &serviceListener{service: service, listener: listener}
	if err := listener.Announce(func() { g.accept(d) }); err != nil {
		_ = listener.Close()
		return err
	}
	g.listeners[service.UID] = append(g.listeners[service.UID], d)
	return nil
}

// Close stops serving the Service: nobody new comes. Who is here already stays, also who has not said yet what it is: inside TLS
// it could not even be told to come again. Closing one that is not served does nothing.
func (g *Gateway) Close(uid types.UID) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.close(uid)
}

func (g *Gateway) close(uid types.UID) {
	for _, d := range g.listeners[uid] {
		_ = d.listener.Close()
	}
	delete(g.listeners, uid)
}

// Drain stops serving every Service. Clients that are held may wait for their clusters, and sessions that pass through may end by
// themselves, until the context ends. Then the ones are told to come again, and the others are cut, which is the error. Nothing
// of the gateway runs when it returns.
func (g *Gateway) Drain(ctx context.Context) error {
	g.mutex.Lock()
	g.draining = true
	for uid := range g.listeners {
		g.close(uid)
	}
	g.mutex.Unlock()

	ended := make(chan struct{})
	go func() { defer close(ended); g.work.Wait() }()
	defer g.cutAll(errClosed)
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		cut := g.spliced.count()
		g.cutAll(errClosed)
		<-ended
		return fmt.Errorf("drain: %d sessions were cut: %w", cut, context.Cause(ctx))
	}
}
