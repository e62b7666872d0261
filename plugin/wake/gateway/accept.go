package gateway

import (
	"errors"
	"net"
	"net/netip"
	"time"
)

// acceptPause is how long a listener waits after an error, which is the process's own: it has no file descriptors or no
// memory left.
const acceptPause = time.Second

// accept takes connections until the listener is closed.
func (g *Gateway) accept(d *door) {
	for {
		conn, err := d.listener.Accept()
		switch {
		case err == nil:
			g.admit(d, conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			g.logger.Warn("a connection cannot be accepted", "namespace", d.service.Namespace, "service", d.service.Name, "error", err.Error())
			pause(d.open, acceptPause)
		}
	}
}

// admit gives the connection a place among those that open, and a goroutine.
func (g *Gateway) admit(d *door, conn net.Conn) {
	client, is := conn.(*net.TCPConn)
	if !is || !g.opening.take(d.service.cluster()) {
		g.observer.Refused(d.service, RefusedOpening)
		_ = conn.Close()
		return
	}
	v := &visit{
		Gateway: g, door: d, client: client, peer: addrPort(conn.RemoteAddr()), came: time.Now(),
	}
	v.logger = g.logger.With("namespace", d.service.Namespace, "cluster", d.service.Cluster, "service", d.service.Name, "peer", v.peer.String())
	g.work.Go(v.serve)
}

// addrPort is a TCP address without the form that an IPv4 address has on a socket for both families.
func addrPort(address net.Addr) netip.AddrPort {
	tcp, is := address.(*net.TCPAddr)
	if !is {
		return netip.AddrPort{}
	}
	mapped := tcp.AddrPort()
	return netip.AddrPortFrom(mapped.Addr().Unmap(), mapped.Port())
}
