package waker

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
)

// Notifier tells waiters that something about a cluster has changed.
type Notifier = keyed.Notifier[types.NamespacedName]

// searches are the Services that clients wait for or that are searched for. They keep nothing about clients that leave.
type searches struct{ keyed.Map[types.UID, sought] }

// sought is a Service that clients wait for, or that is searched for.
type sought struct {
	// clients wait, in the order in which they came. Any of them that may wake the cluster does.
	clients []*waiting
	// running is the search, and until is how long some client still waits for it.
	running *search
	until   time.Time
}

func (s *sought) keep() bool { return len(s.clients) != 0 || s.running != nil }

// waiting is a client that waits.
type waiting struct {
	gateway.Client
	since time.Time
}

// search looks for an instance. Its address and err may be read once ended is closed.
type search struct {
	ended   chan struct{}
	address netip.AddrPort
	err     error
}

// add adds a client until the returned function is called.
func (s *searches) add(service types.UID, client gateway.Client) (leave func()) {
	added := &waiting{client, time.Now()}
	s.Change(service, func(of *sought) bool {
		of.clients = append(of.clients, added)
		return true
	})
	return func() {
		s.Change(service, func(of *sought) bool {
			of.clients = slices.DeleteFunc(of.clients, func(c *waiting) bool { return c == added })
			return of.keep()
		})
	}
}

// join extends the Service's search until the given time, and starts one if none is running.
func (s *searches) join(service types.UID, until time.Time, find func() (netip.AddrPort, error)) (joined *search) {
	s.Change(service, func(of *sought) bool {
		if of.running != nil {
			joined = of.running
			if until.After(of.until) {
				of.until = until
			}
			return true
		}
		joined = &search{ended: make(chan struct{})}
		of.running, of.until = joined, until
		go func() {
			defer s.Change(service, func(of *sought) bool {
				of.running = nil
				close(joined.ended)
				return of.keep()
			})
			joined.address, joined.err = find()
		}()
		return true
	})
	return joined
}

// left returns how long some client still waits for the running search; it is not positive if none does.
func (s *searches) left(service types.UID, now time.Time) time.Duration {
	return s.Get(service).until.Sub(now)
}

// clients returns one client of each address that waits for the Service: the one that has waited longest.
func (s *searches) clients(service types.UID) (clients []waiting) {
	seen := map[netip.Addr]bool{}
	s.Change(service, func(of *sought) bool {
		for _, client := range of.clients {
			if address := client.Peer.Addr().Unmap(); !seen[address] {
				seen[address], clients = true, append(clients, *client)
			}
		}
		return of.keep()
	})
	return clients
}
