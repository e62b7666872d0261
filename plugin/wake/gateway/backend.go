package gateway

import (
	"context"
	"errors"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Service is a Service of a sleeping cluster, whose clients come to one listening port of the gateway.
type Service struct {
	// Namespace and Name are the Service's.
	Namespace, Name string
	// UID tells it from another that had its name.
	UID types.UID
	// Cluster is the name of the Cluster, which is in the same namespace.
	Cluster string
}

// cluster is by what clients are counted.
func (s Service) cluster() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Cluster}
}

// Client is somebody who wants a session.
type Client struct {
	// Peer is where it comes from, as the gateway sees it.
	Peer netip.AddrPort
	// TLS tells that it speaks TLS, so that nothing more is known of it.
	TLS bool
	// User, Database and Application are what a plaintext startup packet says. Nobody has proved them.
	User, Database, Application string
}

// Backend knows the clusters: who may come, who sleeps and where sessions go. Its methods are called by many goroutines at
// once.
type Backend interface {
	// Refuses is asked when a connection arrives, before a byte is read; empty: it is served.
	Refuses(service Service, peer netip.AddrPort) Refusal
	// Resolve returns where a client's session goes, and wakes the cluster first if it sleeps. It blocks until an instance
	// accepts sessions, and returns as soon as the context ends: that is so when the client has hung up, too. Errors that the
	// client is told apart are ErrAsleepByHand, ErrMaintenance, ErrReconnect and ErrTimeout.
	Resolve(ctx context.Context, service Service, client Client) (netip.AddrPort, error)
	// Running returns the instances behind the Service that accept sessions now. It never wakes.
	Running(service Service) []netip.AddrPort
	// SendsAway reports whether the peer's session must not come from the gateway's address; Resolve says so by itself.
	SendsAway(service Service, peer netip.AddrPort) bool
	// SendClientAddress tells the instance at target that the session that will come from local is the peer's, before its first
	// byte is sent. Best effort.
	SendClientAddress(ctx context.Context, target, local, peer netip.AddrPort)
}

// Refusal says why a peer is not served at all. The list is closed: it labels metrics.
type Refusal string

// The refusals.
const (
	// RefusalIgnored is a peer on the ignore list of the cluster.
	RefusalIgnored Refusal = "ignored_client"
	// RefusalInstance is an instance of the same cluster.
	RefusalInstance Refusal = "instance"
	// RefusalNotAllowed is a peer outside the networks for which the gateway connects.
	RefusalNotAllowed Refusal = "not_allowed"
)

// Refusals is the closed list.
func Refusals() []Refusal { return []Refusal{RefusalIgnored, RefusalInstance, RefusalNotAllowed} }

// What Resolve may return. A client is told SQLSTATE 57P03 for every error, and in words which it is.
var (
	// ErrAsleepByHand says that only people wake the cluster: one of them put it to sleep, or its annotations say so, and no
	// connection overrules that.
	ErrAsleepByHand = errors.New("only people wake the cluster")
	// ErrMaintenance says that the cluster is not woken while that might have the operator delete volumes.
	ErrMaintenance = errors.New("a wake during the node maintenance might delete volumes")
	// ErrReconnect says that the cluster is awake but that this session must not come from the gateway's address.
	ErrReconnect = errors.New("the session must not pass through the gateway")
	// ErrTimeout says that the cluster did not wake in time.
	ErrTimeout = errors.New("the cluster did not wake in time")
)
