package waker

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

const (
	// probeTimeout limits each of a probe's steps: the dial, the wait for the sidecar and that for PostgreSQL's answer.
	probeTimeout = time.Second
	// announceFor is how long a connection that PostgreSQL has accepted is kept until a sidecar that is starting knows
	// whose it is, and announceEvery how often that is tried.
	announceFor, announceEvery = 3 * time.Second, 100 * time.Millisecond
)

// Prober probes instances.
type Prober struct {
	// Sidecars receive the local port of every probe, so that none counts as a client.
	Sidecars *Sidecars
	// within replaces probeTimeout, unless it is zero. Only tests set it, because they may run on a slow machine.
	within time.Duration
	// announcing has the instances to whose sidecars a probe is being announced.
	announcing sync.Map
}

// AcceptsSessions reports whether PostgreSQL answers a startup packet with anything but 57P03. It closes the connection
// after the answer, which by CloudNativePG's last pg_hba rule is a password request: nothing logs in or is logged.
// While PostgreSQL recovers, each probe is a line in its log.
//
// The local port is sent to the instance's sidecar before the startup packet, because the sidecar judges a connection
// once the kernel reports its end, and PostgreSQL itself ends one that it refuses with 57P03. So the probe waits for
// the sidecar, for at most probeTimeout: there may be none, and a NetworkPolicy may drop the request. A connection that
// PostgreSQL has accepted stays open until the sidecar has its port, for at most announceFor. While a probe waits,
// others of the same instance give up.
func (p *Prober) AcceptsSessions(ctx context.Context, instance netip.AddrPort) bool {
	return p.start(ctx, instance, netip.AddrPort{}, p.limit())
}

// Listens reports whether PgBouncer accepts connections. It sends nothing, like the kubelet's probe: asked for a
// session, PgBouncer would connect to PostgreSQL, and if that failed refuse clients for a while.
func (p *Prober) Listens(ctx context.Context, pooler netip.AddrPort) bool {
	dialer := net.Dialer{Timeout: p.limit()}
	conn, err := dialer.DialContext(ctx, "tcp", pooler.String())
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Signal connects to the instance on behalf of a client that the gateway holds, so that the sidecar counts that client
// as activity, unless the cluster ignores it.
func (p *Prober) Signal(ctx context.Context, instance, client netip.AddrPort) {
	p.start(ctx, instance, client, clientAddressTimeout)
}

// start tells the sidecar that the connection is the client's, or a probe if there is none, and sends a startup packet,
// if need be before the sidecar has answered.
func (p *Prober) start(ctx context.Context, instance, client netip.AddrPort, patience time.Duration) bool {
	dialer := net.Dialer{Timeout: p.limit()}
	conn, err := dialer.DialContext(ctx, "tcp", instance.String())
	if err != nil {
		return false
	}
	local := addrPort(conn.LocalAddr())
	address := contract.ClientAddress{Port: local.Port(), Peer: cmp.Or(client, local), Probe: !client.IsValid()}
	if address.Probe {
		if _, waits := p.announcing.LoadOrStore(instance, nil); waits {
			_ = conn.Close()
			return false
		}
	}
	telling, end := context.WithTimeout(context.WithoutCancel(ctx), announceFor)
	told := make(chan struct{})
	go func() {
		defer close(told)
		_ = wait.PollUntilContextCancel(telling, announceEvery, true, func(ctx context.Context) (bool, error) {
			return p.Sidecars.Send(ctx, instance.Addr(), address), nil // without an answer it counts as a client
		})
	}()
	select {
	case <-told:
	case <-time.After(patience):
	case <-ctx.Done():
	}
	if address.Probe {
		p.announcing.Delete(instance)
	}
	probing, cancel := context.WithTimeout(ctx, p.limit())
	defer cancel()
	code, err := probe.Startup(probing, conn)
	accepts := err == nil && code != probe.CannotConnectNow
	go func() {
		if accepts {
			<-told
		}
		end()
		_ = conn.Close()
	}()
	return accepts
}

// limit returns how long a step may take.
func (p *Prober) limit() time.Duration { return cmp.Or(p.within, probeTimeout) }

// addrPort returns the address of one end of a TCP connection.
func addrPort(address net.Addr) netip.AddrPort {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}
