// Package gateway answers for the Services of sleeping clusters. It finds out whether who connects is a client, holds it while
// its cluster wakes, and then passes its session through to the instance byte for byte: TLS stays between the two, and so do
// passwords.
//
// It decides nothing about clusters: a [Director] says who may come, wakes, and says where sessions go. A connection goes
// through these steps, and holds one place of a limited number in each:
//
//	opening   what it says first is read, within limits; most of what scans a network ends here and woke nothing
//	held      the director wakes the cluster; the client hears nothing, since PostgreSQL's protocol has nothing to say
//	          before the server does, and leaves at once when it hangs up
//	spliced   the kernel moves the bytes both ways until both sides have ended
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Gateway serves any number of Services.
type Gateway struct {
	limits   Limits
	clusters string
	director Director
	observer Observer
	logger   *slog.Logger

	opening, held, spliced *places

	// cut ends when sessions that pass through must end.
	cut    context.Context
	cutAll context.CancelFunc
	// work counts the goroutines.
	work sync.WaitGroup

	mutex    sync.Mutex
	doors    map[types.UID][]*door
	draining bool
}

// door is a listener of a Service.
type door struct {
	service  Service
	listener Listener
	// open ends when the Service is not served any more, with errClosed as its cause.
	open context.Context
	shut context.CancelCauseFunc
}

// New makes a gateway that serves nothing yet. clusters is what kubectl calls the Cluster's kind, such as
// "clusters.postgresql.cnpg.io": people are told how to wake one.
func New(limits Limits, clusters string, director Director, observer Observer, logger *slog.Logger) *Gateway {
	cut, cutAll := context.WithCancel(context.Background())
	return &Gateway{
		limits: limits, clusters: clusters, director: director, observer: observer, logger: logger,
		opening: newPlaces(limits.Opening, limits.OpeningPerCluster),
		held:    newPlaces(limits.Held, limits.HeldPerCluster),
		spliced: newPlaces(limits.Spliced, math.MaxInt),
		cut:     cut, cutAll: cutAll,
		doors: map[types.UID][]*door{},
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
	open, shut := context.WithCancelCause(g.cut)
	d := &door{service: service, listener: listener, open: open, shut: shut}
	if err := listener.Announce(func() { g.accept(d) }); err != nil {
		_ = listener.Close()
		shut(errClosed)
		return err
	}
	g.doors[service.UID] = append(g.doors[service.UID], d)
	return nil
}

// Close stops serving the Service. Clients that are held are told to come again, sessions that pass through go on; so a Service
// whose cluster has woken should first get no new clients, and be closed when nobody is held any more. Closing one that is
// not served does nothing.
func (g *Gateway) Close(uid types.UID) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.close(uid)
}

func (g *Gateway) close(uid types.UID) {
	for _, d := range g.doors[uid] {
		_ = d.listener.Close() // first: whoever is told to come again must not come back here
		d.shut(errClosed)
	}
	delete(g.doors, uid)
}

// Drain stops serving every Service. Clients that are held are told to come again; sessions that pass through may end by
// themselves until the context ends, and are cut then, which is the error. Nothing of the gateway runs when it returns.
func (g *Gateway) Drain(ctx context.Context) error {
	g.mutex.Lock()
	g.draining = true
	for uid := range g.doors {
		g.close(uid)
	}
	g.mutex.Unlock()

	ended := make(chan struct{})
	go func() { defer close(ended); g.work.Wait() }()
	defer g.cutAll()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		g.cutAll()
		<-ended
		return fmt.Errorf("drain: sessions were cut: %w", context.Cause(ctx))
	}
}
