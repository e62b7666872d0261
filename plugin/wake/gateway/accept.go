package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// acceptPause is how long a listener waits after an error of accept(2), which means that the process has no file
// descriptors or no memory left.
const acceptPause = time.Second

func (g *Gateway) accept(service Service, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			g.admit(service, conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			g.logger.Warn("cannot accept a connection", "namespace", service.Namespace, "service", service.Name, "error", err.Error())
			pause(g.cut, acceptPause)
		}
	}
}

// admit gives the connection a starting slot and a goroutine, unless its peer's network is not allowed.
func (g *Gateway) admit(service Service, conn net.Conn) {
	client, ok := conn.(*net.TCPConn)
	if !ok {
		_ = conn.Close()
		return
	}
	c := &clientConn{
		Gateway: g, service: service, client: client, peer: addrPort(conn.RemoteAddr()), came: time.Now(),
	}
	c.logger = g.logger.With("namespace", service.Namespace, "cluster", service.Cluster, "service", service.Name, "peer", c.peer.String())
	defer c.contain()
	if c.wakesNothing = g.backend.Refuses(service, c.peer); c.wakesNothing == RefusalNotAllowed {
		c.ignore(string(RefusalNotAllowed))
		_ = conn.Close()
		return
	}
	starting, displace := context.WithCancelCause(g.cut)
	p := g.starting.take(c.claim(), func() { displace(errStartup) }) // never nil
	g.work.Go(func() {
		defer c.contain()
		defer displace(nil)
		c.serve(starting, p)
	})
}

// addrPort returns a TCP address with IPv4-mapped IPv6 addresses, as dual-stack sockets have them, converted to IPv4.
func addrPort(address net.Addr) netip.AddrPort {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	mapped := tcp.AddrPort()
	return netip.AddrPortFrom(mapped.Addr().Unmap(), mapped.Port())
}
