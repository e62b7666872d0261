package wake

import (
	"net"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
)

// linger is how long a listener stays after its slices have gone: other nodes' kube-proxies still lead there.
const linger = 2 * time.Second

// door is an open port of the gateway, for one Service.
type door struct {
	port     uint16
	arrivals *arrivals
	closing  time.Time // when it is to be closed; zero: it stays
}

// doors are the open ports, by cluster and Service.
type doors struct {
	mutex sync.Mutex
	open  map[types.NamespacedName]map[types.UID]*door
}

func (d *doors) add(cluster types.NamespacedName, service types.UID, opened *door) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.open == nil {
		d.open = map[types.NamespacedName]map[types.UID]*door{}
	}
	if d.open[cluster] == nil {
		d.open[cluster] = map[types.UID]*door{}
	}
	d.open[cluster][service] = opened
}

func (d *doors) of(cluster types.NamespacedName, service types.UID) *door {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.open[cluster][service]
}

// reopen tells whether the door is open, and keeps it so if it was to be closed.
func (d *doors) reopen(cluster types.NamespacedName, service types.UID) bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	door, is := d.open[cluster][service]
	if is {
		door.closing = time.Time{}
	}
	return is
}

// close closes the doors of the Services that are not to be kept, each a moment after it was first asked to. It returns
// those that have to be closed now, and when to ask again.
func (d *doors) close(cluster types.NamespacedName, keep func(types.UID) bool, now time.Time) (closed []types.UID, next time.Time) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for uid, door := range d.open[cluster] {
		switch {
		case keep(uid):
			continue
		case door.closing.IsZero():
			door.closing = now.Add(linger)
		case !now.Before(door.closing):
			closed = append(closed, uid)
			delete(d.open[cluster], uid)
			continue
		}
		if next.IsZero() || door.closing.Before(next) {
			next = door.closing
		}
	}
	if len(d.open[cluster]) == 0 {
		delete(d.open, cluster)
	}
	return closed, next
}

// namespaces are those of the clusters that have doors.
func (d *doors) namespaces() []string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	var namespaces []string
	for cluster := range d.open {
		namespaces = append(namespaces, cluster.Namespace)
	}
	return namespaces
}

// arrivals is a listener that tells of the connections that come, those of each family of addresses apart: that a Service leads
// here by one says nothing of the other.
type arrivals struct {
	gateway.Listener
	mutex   sync.Mutex
	arrived map[discoveryv1.AddressType]chan struct{}
}

func newArrivals(listener gateway.Listener) *arrivals {
	return &arrivals{Listener: listener, arrived: map[discoveryv1.AddressType]chan struct{}{}}
}

// Next returns a channel that the next connection of the family closes.
func (a *arrivals) Next(family discoveryv1.AddressType) <-chan struct{} {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.arrived[family] == nil {
		a.arrived[family] = make(chan struct{})
	}
	return a.arrived[family]
}

// Accept hands a connection on, and tells that it has come.
func (a *arrivals) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	peer, is := conn.RemoteAddr().(*net.TCPAddr)
	if !is {
		return conn, nil
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	family := slices.FamilyOf(peer.AddrPort().Addr().Unmap()) // on a socket for both families IPv4 has a form of its own
	if arrived := a.arrived[family]; arrived != nil {
		close(arrived)
		delete(a.arrived, family)
	}
	return conn, nil
}
