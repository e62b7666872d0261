package wake

import (
	"net"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// drainDelay is how long a listener stays after its slices are gone, because the kube-proxies of other nodes still lead there.
const drainDelay = 2 * time.Second

// openPort is an open port of the gateway, for one Service.
type openPort struct {
	port           uint16
	acceptNotifier *acceptNotifier
	closing        time.Time // when to close it; zero: it stays open
}

// openPorts are the open ports, by cluster and Service.
type openPorts struct {
	mutex sync.Mutex
	open  map[types.NamespacedName]map[types.UID]*openPort
}

func (d *openPorts) add(cluster types.NamespacedName, service types.UID, opened *openPort) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.open == nil {
		d.open = map[types.NamespacedName]map[types.UID]*openPort{}
	}
	if d.open[cluster] == nil {
		d.open[cluster] = map[types.UID]*openPort{}
	}
	d.open[cluster][service] = opened
}

func (d *openPorts) of(cluster types.NamespacedName, service types.UID) *openPort {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.open[cluster][service]
}

// reopen reports whether the port is open, and keeps it open if it was about to be closed.
func (d *openPorts) reopen(cluster types.NamespacedName, service types.UID) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	openPort, ok := d.open[cluster][service]
	if ok {
		openPort.closing = time.Time{}
	}
	return ok
}

// close schedules the closing of the ports of Services that are not to be kept, drainDelay after the first call. It returns those
// to close now, and when to call again.
func (d *openPorts) close(cluster types.NamespacedName, keep func(types.UID) bool, now time.Time) (closed []types.UID, next time.Time) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for uid, openPort := range d.open[cluster] {
		switch {
		case keep(uid):
			continue
		case openPort.closing.IsZero():
			openPort.closing = now.Add(drainDelay)
		case !now.Before(openPort.closing):
			closed = append(closed, uid)
			delete(d.open[cluster], uid)
			continue
		}
		if next.IsZero() || openPort.closing.Before(next) {
			next = openPort.closing
		}
	}
	if len(d.open[cluster]) == 0 {
		delete(d.open, cluster)
	}
	return closed, next
}

// namespaces returns the namespaces of the clusters that have open ports.
func (d *openPorts) namespaces() []string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var namespaces []string
	for cluster := range d.open {
		namespaces = append(namespaces, cluster.Namespace)
	}
	return namespaces
}

// acceptNotifier is a listener that reports accepted connections, separately for each address family, because a Service may lead
// here for one family but not the other.
type acceptNotifier struct {
	net.Listener
	mutex   sync.Mutex
	arrived map[discoveryv1.AddressType]chan struct{}
}

func newAcceptNotifier(listener net.Listener) *acceptNotifier {
	return &acceptNotifier{Listener: listener, arrived: map[discoveryv1.AddressType]chan struct{}{}}
}

// Next returns a channel that the next connection of the family closes.
func (a *acceptNotifier) Next(family discoveryv1.AddressType) <-chan struct{} {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.arrived[family] == nil {
		a.arrived[family] = make(chan struct{})
	}
	return a.arrived[family]
}

// Accept accepts a connection and reports it.
func (a *acceptNotifier) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	peer, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return conn, nil
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	family := endpointslice.FamilyOf(peer.AddrPort().Addr().Unmap()) // dual-stack sockets have IPv4-mapped addresses
	if arrived := a.arrived[family]; arrived != nil {
		close(arrived)
		delete(a.arrived, family)
	}
	return conn, nil
}
