package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// acceptPause is how long a listener waits after an error, which is the process's own: it has no file descriptors or no
// memory left.
const acceptPause = time.Second

// Listener is a port. It says when somebody comes, so that nobody has to wait in Accept.
type Listener interface {
	net.Listener
	// Announce has the function called when a connection waits to be accepted, and again only after it has returned, until
	// the listener is closed.
	Announce(come func()) error
}

// accept takes the connection that waits.
func (g *Gateway) accept(d *serviceListener) {
	if !g.enter() {
		return
	}
	defer g.work.Done()
	conn, err := d.listener.Accept()
	switch {
	case err == nil:
		g.admit(d, conn)
	case errors.Is(err, net.ErrClosed):
	default:
		g.logger.Warn("a connection cannot be accepted", "namespace", d.service.Namespace, "service", d.service.Name, "error", err.Error())
		pause(g.cut, acceptPause)
	}
}

// enter counts a goroutine, unless the gateway drains and waits for those that were.
func (g *Gateway) enter() bool {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if !g.draining {
		g.work.Add(1)
	}
	return !g.draining
}

// admit gives the connection of a peer that may come a slot among those that open, and a goroutine.
func (g *Gateway) admit(d *serviceListener, conn net.Conn) {
	client, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return
	}
	c := &clientConn{
		Gateway: g, listener: d, client: client, peer: addrPort(conn.RemoteAddr()), came: time.Now(),
	}
	c.logger = g.logger.With("namespace", d.service.Namespace, "cluster", d.service.Cluster, "service", d.service.Name, "peer", c.peer.String())
	defer c.contain()
	refusal := g.backend.Refuses(d.service, c.peer)
	c.ignored = refusal == RefusalIgnored && len(g.backend.Running(d.service)) != 0
	if refusal != "" && !c.ignored {
		c.ignore(string(refusal))
		_ = conn.Close()
		return
	}
	starting, displace := context.WithCancelCause(g.cut)
	p := g.starting.take(c.claim(), func() { displace(errStartup) }) // which refuses nobody
	g.work.Go(func() {
		defer c.contain()
		defer displace(nil)
		c.serve(starting, p)
	})
}

// addrPort is a TCP address without the form that an IPv4 address has on a socket for both families.
func addrPort(address net.Addr) netip.AddrPort {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	mapped := tcp.AddrPort()
	return netip.AddrPortFrom(mapped.Addr().Unmap(), mapped.Port())
}
