package wake

import (
	"net"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
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

// arrivals is a listener that tells of the connections that come.
type arrivals struct {
	gateway.Listener
	mutex   sync.Mutex
	arrived chan struct{}
}

func newArrivals(listener gateway.Listener) *arrivals {
	return &arrivals{Listener: listener, arrived: make(chan struct{})}
}

// Next returns a channel that the next connection closes.
func (a *arrivals) Next() <-chan struct{} {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.arrived
}

// Accept hands a connection on, and tells that it has come.
func (a *arrivals) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		close(a.arrived)
		a.arrived = make(chan struct{})
	}
	return conn, err
}
