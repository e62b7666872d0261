package wake

import (
	"net"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
)

// drainDelay is how long a listener stays at least after its slices are gone, because the kube-proxies of other nodes
// still lead there.
const drainDelay = 2 * time.Second

// openPort is an open port of the gateway, for one Service.
type openPort struct {
	port           uint16
	acceptNotifier *acceptNotifier
	closing        time.Time // when to close it; zero: it stays open
}

// openPorts are the open ports, by cluster and Service. Only the cluster's reconciliation reads and changes its ports.
type openPorts struct {
	keyed.Map[types.NamespacedName, map[types.UID]*openPort]
}

func (d *openPorts) add(cluster types.NamespacedName, service types.UID, opened *openPort) {
	open := d.Get(cluster)
	if open == nil {
		open = map[types.UID]*openPort{}
		d.Set(cluster, open)
	}
	open[service] = opened
}

// close schedules the closing of the ports of Services that are not to be kept, that long after the first call. It
// returns those to close now, and when to call again.
func (d *openPorts) close(
	of types.NamespacedName, keep []types.UID, after time.Duration, now time.Time,
) (closed []types.UID, next time.Time) {
	open := d.Get(of)
	for uid, openPort := range open {
		switch {
		case slices.Contains(keep, uid):
			continue
		case openPort.closing.IsZero():
			openPort.closing = now.Add(after)
		case !now.Before(openPort.closing):
			closed = append(closed, uid)
			delete(open, uid)
			continue
		}
		if next.IsZero() || openPort.closing.Before(next) {
			next = openPort.closing
		}
	}
	if len(open) == 0 {
		d.Delete(of)
	}
	return closed, next
}

// acceptNotifier is a listener that reports accepted connections, separately for each address family, because a Service
// may lead here for one family but not the other.
type acceptNotifier struct {
	net.Listener
	arrived keyed.Notifier[discoveryv1.AddressType]
}

// Accept accepts a connection and reports it.
func (a *acceptNotifier) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if peer, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		address := peer.AddrPort().Addr().Unmap() // dual-stack sockets have IPv4-mapped addresses
		a.arrived.Notify(endpointslice.FamilyOf(address))
	}
	return conn, nil
}
