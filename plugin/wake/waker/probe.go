package waker

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

const (
	// probeTimeout limits the dial of a probe and its wait for the sidecar, and answerTimeout its wait for PostgreSQL's answer,
	// which is as long as that of the kubelet's probes of CloudNativePG's pods.
	probeTimeout, answerTimeout = time.Second, 5 * time.Second
	// announceFor is how long a connection that PostgreSQL has accepted is kept until a sidecar that is starting knows
	// whose it is, and announceEvery how often that is tried.
	announceFor, announceEvery = 3 * time.Second, 100 * time.Millisecond
)

// Prober probes instances.
type Prober struct {
	// Sidecars receive the local port of every probe, so that none counts as a client.
	Sidecars *Sidecars
	// within replaces the timeouts, unless it is zero. Only tests set it, because they may run on a slow machine.
	within time.Duration
	// connected has the probe of each instance that has a connection.
	connected keyed.Map[netip.AddrPort, *connectedProbe]
}

// connectedProbe is a probe that has a connection. answered is closed when it has an answer.
type connectedProbe struct {
	answered chan struct{}
	accepts  bool
}

// AcceptsSessions reports whether PostgreSQL answers a startup packet with anything but 57P03. It closes the connection
// after the answer, which by CloudNativePG's last pg_hba rule is a password request: nothing logs in or is logged.
// While PostgreSQL recovers, each probe is a line in its log.
//
// PostgreSQL forks a process for each connection, and on a busy node takes seconds for that. So while a probe has a
// connection, others of the same instance wait for its answer.
//
// The local port is sent to the instance's sidecar before the startup packet, because the sidecar judges a connection
// once the kernel reports its end, and PostgreSQL itself ends one that it refuses with 57P03. So the probe waits for
// the sidecar, for at most probeTimeout: there may be none, and a NetworkPolicy may drop the request. A connection that
// PostgreSQL has accepted stays open until the sidecar has its port, for at most announceFor.
func (p *Prober) AcceptsSessions(ctx context.Context, instance netip.AddrPort) bool {
	if other := p.connected.Get(instance); other != nil {
		return other.wait(ctx)
	}
	conn, err := p.dial(ctx, instance)
	if err != nil {
		return false
	}
	own := &connectedProbe{answered: make(chan struct{})}
	first := own
	p.connected.Change(instance, func(probe **connectedProbe) bool {
		first = cmp.Or(*probe, own)
		*probe = first
		return true
	})
	if first != own {
		_ = conn.Close()
		return first.wait(ctx)
	}
	defer close(own.answered)
	defer p.connected.Delete(instance)
	own.accepts = p.start(ctx, conn, instance, netip.AddrPort{}, p.limit(probeTimeout), p.limit(answerTimeout))
	return own.accepts
}

// wait returns the answer of another probe.
func (c *connectedProbe) wait(ctx context.Context) bool {
	select {
	case <-c.answered:
		return c.accepts
	case <-ctx.Done():
		return false
	}
}

func (p *Prober) dial(ctx context.Context, instance netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{Timeout: p.limit(probeTimeout)}
	return dialer.DialContext(ctx, "tcp", instance.String())
}

// Listens reports whether PgBouncer accepts connections. It sends nothing, like the kubelet's probe: asked for a
// session, PgBouncer would connect to PostgreSQL, and if that failed refuse clients for a while.
func (p *Prober) Listens(ctx context.Context, pooler netip.AddrPort) bool {
	conn, err := p.dial(ctx, pooler)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Signal connects to the instance on behalf of a client that the gateway holds, so that the sidecar counts that client
// as activity, unless the cluster ignores it.
func (p *Prober) Signal(ctx context.Context, instance, client netip.AddrPort) {
	if conn, err := p.dial(ctx, instance); err == nil {
		p.start(ctx, conn, instance, client, clientAddressTimeout, p.limit(probeTimeout))
	}
}

// start tells the sidecar that the connection is the client's, or a probe if there is none, and sends a startup packet,
// if need be before the sidecar has answered. It waits for the sidecar for patience, and then for PostgreSQL's answer within.
func (p *Prober) start(ctx context.Context, conn net.Conn, instance, client netip.AddrPort, patience, within time.Duration) bool {
	local := addrPort(conn.LocalAddr())
	address := contract.ClientAddress{Port: local.Port(), Peer: cmp.Or(client, local), Probe: !client.IsValid()}
	telling, end := context.WithTimeout(context.WithoutCancel(ctx), patience+within+announceFor)
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
	probing, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	code, err := probe.Startup(probing, conn)
	accepts := err == nil && code != probe.CannotConnectNow
	go func() {
		if accepts {
			select {
			case <-told:
			case <-time.After(announceFor):
			}
		}
		end()
		_ = conn.Close()
	}()
	return accepts
}

// limit returns how long a step may take.
func (p *Prober) limit(usual time.Duration) time.Duration { return cmp.Or(p.within, usual) }

// addrPort returns the address of one end of a TCP connection.
func addrPort(address net.Addr) netip.AddrPort {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}
