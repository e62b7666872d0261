package waker

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// probeTimeout limits one probe.
const probeTimeout = time.Second

// Prober probes instances.
type Prober struct {
	// Sidecars receive the local port of every probe, so that none counts as a client.
	Sidecars *Sidecars
	// within limits one probe; zero means probeTimeout. Only tests set it, since they may run on a slow machine.
	within time.Duration
}

// AcceptsSessions reports whether PostgreSQL answers a startup packet with anything but 57P03. It closes the connection after the
// answer, which by CloudNativePG's last pg_hba rule is a password request: nothing logs in or is logged. While PostgreSQL
// recovers, each probe is a line in its log.
//
// The local port is sent to the instance's sidecar while PostgreSQL answers, so the wake does not wait for it: at first there may
// be no sidecar yet, and a NetworkPolicy may drop the request. The sidecar judges a connection once the kernel reports its end,
// so a connection that PostgreSQL left open is kept until the sidecar has answered or its time is up. A connection that
// PostgreSQL closed itself, as with 57P03, may be judged first. It then counts as activity, but a client is waiting anyway.
func (p *Prober) AcceptsSessions(ctx context.Context, instance netip.AddrPort) bool {
	return p.start(ctx, instance, func(local netip.AddrPort) contract.ClientAddress {
		return contract.ClientAddress{Port: local.Port(), Peer: local, Probe: true}
	})
}

// Signal connects to the instance on behalf of a client that the gateway holds, so that the sidecar counts that client as
// activity, unless the cluster ignores it.
func (p *Prober) Signal(ctx context.Context, instance, client netip.AddrPort) {
	p.start(ctx, instance, func(local netip.AddrPort) contract.ClientAddress {
		return contract.ClientAddress{Port: local.Port(), Peer: client}
	})
}

// start sends a startup packet, and tells the sidecar whose connection it is.
func (p *Prober) start(ctx context.Context, instance netip.AddrPort, whose func(local netip.AddrPort) contract.ClientAddress) (accepts bool) {
	probing, cancel := context.WithTimeout(ctx, cmp.Or(p.within, probeTimeout))
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(probing, "tcp", instance.String())
	if err != nil {
		return false
	}
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		p.Sidecars.Send(context.WithoutCancel(ctx), instance.Addr(), whose(addrPort(conn.LocalAddr())))
		<-answered
		_ = conn.Close()
	}()
	code, err := probe.Startup(probing, conn)
	return err == nil && code != probe.CannotConnectNow
}

// addrPort returns the address of one end of a TCP connection.
func addrPort(address net.Addr) netip.AddrPort {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}
