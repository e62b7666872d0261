package waker

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

const (
	// probeTimeout limits one probe.
	probeTimeout = time.Second
	// announceFor is how long a connection that PostgreSQL has accepted is kept until a sidecar that is starting knows whose it is, and
	// announceEvery how often that is tried: it may see the connection end before it listens.
	announceFor, announceEvery = 3 * time.Second, 100 * time.Millisecond
)

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
// The local port is sent to the instance's sidecar before the startup packet, because the sidecar judges a connection once the kernel
// reports its end, and PostgreSQL itself ends one that it refuses with 57P03. The wake waits for that for at most clientAddressTimeout,
// as a client's session does: at first there may be no sidecar yet, and a NetworkPolicy may drop the request. It is repeated until the
// sidecar accepts it, and a connection that PostgreSQL has accepted stays open until then, for at most announceFor.
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
	telling, end := context.WithTimeout(context.WithoutCancel(ctx), announceFor)
	first, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		address := whose(addrPort(conn.LocalAddr()))
		ok := p.Sidecars.Send(telling, instance.Addr(), address)
		if close(first); !ok { // without an answer it counts as a client
			_ = wait.PollUntilContextCancel(telling, announceEvery, false, func(ctx context.Context) (bool, error) {
				return p.Sidecars.Send(ctx, instance.Addr(), address), nil
			})
		}
	}()
	select {
	case <-first:
	case <-time.After(clientAddressTimeout):
	}
	code, err := probe.Startup(probing, conn)
	accepts = err == nil && code != probe.CannotConnectNow
	go func() {
		if accepts {
			<-told
		}
		end()
		_ = conn.Close()
	}()
	return accepts
}

// addrPort returns the address of one end of a TCP connection.
func addrPort(address net.Addr) netip.AddrPort {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}
