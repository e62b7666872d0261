// Package gateway holds the clients of sleeping clusters and splices them to the instances that were woken for them. This is
// its interface only.
package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Service is a Service whose clients come here while its cluster sleeps.
type Service struct {
	Namespace, Name string
	UID             types.UID
	// Cluster is the name of the Cluster.
	Cluster string
}

// Client is what is known of a client before it has logged in; user, database and application only without TLS.
type Client struct {
	Peer                        netip.AddrPort
	TLS                         bool
	User, Database, Application string
}

// Refusal says why a client is not served; empty: it is.
type Refusal string

// The refusals.
const (
	// RefusalIgnored says that the cluster's ignore annotation names the client's address.
	RefusalIgnored Refusal = "ignored_client"
	// RefusalInstance says that the client is an instance of the same cluster.
	RefusalInstance Refusal = "instance"
	// RefusalNotAllowed says that the address is not in the allow-list.
	RefusalNotAllowed Refusal = "not_allowed"
)

// Errors of a [Director].
var (
	// ErrAsleepByHand says that a person put the cluster to sleep, or that only people wake it.
	ErrAsleepByHand = errors.New("the cluster was put to sleep by hand")
	// ErrReconnect says that the cluster is awake and the client has to come again, directly.
	ErrReconnect = errors.New("the cluster is awake; connect again")
	// ErrTimeout says that the cluster did not wake in time.
	ErrTimeout = errors.New("the cluster did not wake in time")
)

// Director knows the clusters.
type Director interface {
	// Refuses is asked when a client has come.
	Refuses(service Service, peer netip.AddrPort) Refusal
	// Resolve wakes the cluster if it sleeps, and blocks until an instance accepts sessions.
	Resolve(ctx context.Context, service Service, client Client) (netip.AddrPort, error)
	// Running are the instances behind the Service that accept sessions now. It never wakes.
	Running(service Service) []netip.AddrPort
	// Introduce tells target's sidecar that the connection from local is really peer's.
	Introduce(ctx context.Context, target, local, peer netip.AddrPort)
}

// Observer counts.
type Observer any

// Limits bound what is held.
type Limits struct{}

// DefaultLimits are the limits unless set otherwise.
func DefaultLimits() Limits { return Limits{} }

// Gateway serves the listeners.
type Gateway struct {
	mutex     sync.Mutex
	listeners map[types.UID]net.Listener
}

// New makes a Gateway.
func New(Limits, Director, Observer, *slog.Logger) *Gateway {
	return &Gateway{listeners: map[types.UID]net.Listener{}}
}

// Open serves a listener for the Service.
func (g *Gateway) Open(service Service, listener net.Listener) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.listeners[service.UID] = listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
}

// Close closes the listener of a Service; sessions go on.
func (g *Gateway) Close(uid types.UID) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if listener, open := g.listeners[uid]; open {
		_ = listener.Close()
		delete(g.listeners, uid)
	}
}

// Drain waits until the sessions have ended, or the context has.
func (g *Gateway) Drain(context.Context) error { return nil }
