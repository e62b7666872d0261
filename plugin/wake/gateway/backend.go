package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Service is a Service of a sleeping cluster. Its clients arrive at one listening port of the gateway.
type Service struct {
	// Namespace and Name are the Service's.
	Namespace, Name string
	// UID distinguishes it from an earlier Service of the same name.
	UID types.UID
	// Cluster is the name of the Cluster, which is in the same namespace.
	Cluster string
}

// cluster is the key by which clients are counted.
func (s Service) cluster() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Cluster}
}

// Client is a client that wants a session.
type Client struct {
	// Peer is its address, as the gateway sees it.
	Peer netip.AddrPort
	// User and Database are from a plaintext startup packet, and not authenticated; empty with TLS.
	User, Database string
}

// Backend knows the clusters: which clients are admitted, which clusters sleep and where sessions go. Its methods are
// called concurrently.
type Backend interface {
	// Refuses is called when a connection arrives, before a byte is read. If it returns "", the connection is served.
	Refuses(service Service, peer netip.AddrPort) Refusal
	// Resolve returns the instance for a client's session. If the cluster sleeps, Resolve wakes it first. It blocks until
	// an instance accepts sessions or the context ends, which it also does when the client hangs up. The client gets a
	// specific message for the errors ErrAsleepByHand, ErrMaintenance, ErrReconnect, ErrGone and ErrTimeout.
	Resolve(ctx context.Context, service Service, client Client) (netip.AddrPort, error)
	// Running returns the instances behind the Service that should accept sessions now. It never wakes the cluster. It may
	// take five seconds.
	Running(ctx context.Context, service Service) []netip.AddrPort
	// MustReconnect reports whether the peer's session must not come from the gateway's address. Resolve checks this
	// itself.
	MustReconnect(service Service, peer netip.AddrPort) bool
	// SendClientAddress tells the instance at target that the session from local belongs to the peer. It is called before
	// the session's first byte is sent, and makes only its best effort.
	SendClientAddress(ctx context.Context, target, local, peer netip.AddrPort)
	// MayBegin reports whether a session that is connected to an instance may send its first byte: not once all clients
	// are held.
	MayBegin(ctx context.Context, service Service) bool
	// CountAsActive makes the instances count a peer as activity that gets no session here.
	CountAsActive(ctx context.Context, service Service, peer netip.AddrPort)
}

// Refusal says why a peer is not served at all. The set is closed, because it labels metrics.
type Refusal string

const (
	// RefusalIgnored is a peer on the ignore list of the cluster. It is served after all if instances are running.
	RefusalIgnored Refusal = "ignored_client"
	// RefusalInstance is an instance of the same cluster. Like an ignored peer, it is served if instances are running.
	RefusalInstance Refusal = "instance"
	// RefusalNotAllowed is a peer outside the networks that the gateway serves.
	RefusalNotAllowed Refusal = "not_allowed"
)

// Refusals returns all refusals.
func Refusals() []Refusal { return []Refusal{RefusalIgnored, RefusalInstance, RefusalNotAllowed} }

// Errors of Resolve. For every error the client gets SQLSTATE 57P03, and a message that says which it is.
var (
	// ErrAsleepByHand means that only people wake the cluster: one of them put it to sleep, or its annotations say so.
	ErrAsleepByHand = errors.New("only people wake the cluster")
	// ErrMaintenance means that the cluster is not woken because the operator might delete volumes then.
	ErrMaintenance = errors.New("a wake during the node maintenance might delete volumes")
	// ErrReconnect means that the cluster is awake, but this session must not come from the gateway's address.
	ErrReconnect = errors.New("the session must not pass through the gateway")
	// ErrReconnectDirectly is an ErrReconnect because the Service leads to instances that this replica cannot reach.
	ErrReconnectDirectly = fmt.Errorf("%w: this replica cannot reach the instances", ErrReconnect)
	// ErrGone means that the Service or the Cluster does not exist, or is being deleted.
	ErrGone = errors.New("the Service or its Cluster is gone")
	// ErrTimeout means that the cluster did not wake in time.
	ErrTimeout = errors.New("the cluster did not wake in time")
)
