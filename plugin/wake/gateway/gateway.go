// Package gateway answers for the Services of sleeping clusters. It finds out whether a connection is a client's, holds
// it while its cluster wakes, and then forwards its session to the instance byte for byte, so TLS and authentication
// stay between client and server.
//
// It makes no decisions about clusters: a [Backend] says who is admitted, wakes clusters, and says where sessions go. A
// connection goes through these steps, and holds one of a limited number of slots in each:
//
//	starting  its startup packet is read, within limits; port scans mostly end here and wake nothing
//	held      the backend wakes the cluster; the client hears nothing, because in PostgreSQL's protocol the server
//	          speaks first here; its slot is freed at once if it hangs up
//	spliced   the kernel forwards the bytes both ways until both sides have ended
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
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

	// cut ends when all connections must be closed, with errClosed as its cause.
	cut    context.Context
	cutAll context.CancelCauseFunc
	// work counts the goroutines of listeners and connections.
	work sync.WaitGroup

	mutex     sync.Mutex
	listeners map[types.UID][]net.Listener
	draining  bool
}

// New makes a gateway that serves nothing yet. clusters is kubectl's name for the Cluster resource, such as
// "clusters.postgresql.cnpg.io", for messages that say how to wake a cluster.
func New(limits Limits, clusters string, backend Backend, observer Observer, logger *slog.Logger) *Gateway {
	cut, cutAll := context.WithCancelCause(context.Background())
	return &Gateway{
		limits: limits, clusters: clusters, backend: backend, observer: observer, logger: logger,
		starting: newLimiter(limits.Starting, true), held: newLimiter(limits.Held, false), spliced: newSessions(limits.Spliced),
		cut: cut, cutAll: cutAll,
		listeners: map[types.UID][]net.Listener{},
	}
}

// SetHeld changes how many clients can wait for a session.
func (g *Gateway) SetHeld(most int) { g.held.resize(most) }

// Open serves the Service on the listener, which the gateway then owns. A Service may have several listeners: one for
// each address family. After Drain the listener is closed at once.
func (g *Gateway) Open(service Service, listener net.Listener) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.draining {
		_ = listener.Close()
		return
	}
	g.work.Go(func() { g.accept(service, listener) })
	g.listeners[service.UID] = append(g.listeners[service.UID], listener)
}

// Close stops accepting connections for the Service. Connections that are open stay, even in the starting step: inside
// TLS they could not even be told to reconnect. It does nothing if the Service is not served.
func (g *Gateway) Close(uid types.UID) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.close(uid)
}

func (g *Gateway) close(uid types.UID) {
	for _, listener := range g.listeners[uid] {
		_ = listener.Close()
	}
	delete(g.listeners, uid)
}

// Drain stops serving every Service. Until the context ends, held clients may wait for their clusters and sessions may
// end by themselves. Then held clients are told to reconnect, and sessions are cut, which is the error. When Drain
// returns, no goroutine of the gateway is left.
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
		if cut == 0 { // there were only held clients, and connections that had said nothing
			return nil
		}
		return fmt.Errorf("drain: %d sessions were cut: %w", cut, context.Cause(ctx))
	}
}
