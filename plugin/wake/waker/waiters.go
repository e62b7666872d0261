package waker

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
)

// waiters are the clients that wait for a search, by Service. Any of them that may wake the cluster does. The zero value is ready to
// use.
type waiters struct {
	mutex    sync.Mutex
	services map[types.UID][]*waiting // each in the order in which they came
}

// waiting is a client that waits.
type waiting struct {
	gateway.Client
	since time.Time
}

// add adds a client until the returned function is called.
func (w *waiters) add(service types.UID, client gateway.Client) (leave func()) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.services == nil {
		w.services = map[types.UID][]*waiting{}
	}
	added := &waiting{client, time.Now()}
	w.services[service] = append(w.services[service], added)
	return func() { w.remove(service, added) }
}

func (w *waiters) remove(service types.UID, leaving *waiting) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	left := slices.DeleteFunc(w.services[service], func(c *waiting) bool { return c == leaving })
	if w.services[service] = left; len(left) == 0 {
		delete(w.services, service)
	}
}

// of returns one client of each address that waits for the Service: the one that has waited longest.
func (w *waiters) of(service types.UID) []waiting {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var clients []waiting
	seen := map[netip.Addr]bool{}
	for _, client := range w.services[service] {
		if address := client.Peer.Addr().Unmap(); !seen[address] {
			seen[address], clients = true, append(clients, *client)
		}
	}
	return clients
}
