package waker

import (
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
)

// waiters are the clients that wait for a search, by Service and address. Any of them that may wake the cluster does. The zero
// value is ready to use.
type waiters struct {
	mutex    sync.Mutex
	services map[types.UID]map[netip.Addr]*waiter
}

// waiter represents the clients of one address.
type waiter struct {
	client gateway.Client // the first
	count  int
}

// add adds a client until the returned function is called.
func (w *waiters) add(service types.UID, client gateway.Client) (leave func()) {
	address := client.Peer.Addr().Unmap()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.services == nil {
		w.services = map[types.UID]map[netip.Addr]*waiter{}
	}
	addresses := w.services[service]
	if addresses == nil {
		addresses = map[netip.Addr]*waiter{}
		w.services[service] = addresses
	}
	if addresses[address] == nil {
		addresses[address] = &waiter{client: client}
	}
	addresses[address].count++
	return func() { w.remove(service, address) }
}

func (w *waiters) remove(service types.UID, address netip.Addr) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	addresses := w.services[service]
	if addresses[address].count--; addresses[address].count == 0 {
		delete(addresses, address)
	}
	if len(addresses) == 0 {
		delete(w.services, service)
	}
}

// of returns one client of each address that waits for the Service.
func (w *waiters) of(service types.UID) []gateway.Client {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	clients := make([]gateway.Client, 0, len(w.services[service]))
	for _, waiting := range w.services[service] {
		clients = append(clients, waiting.client)
	}
	return clients
}
