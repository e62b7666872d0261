package gateway

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// other is a Service of another tenant's cluster.
var other = Service{Namespace: "blog", Name: "posts-rw", UID: "uid-2", Cluster: "posts"}

// open serves another Service, and returns its address.
func (r running) open(t testing.TB, service Service) string {
	t.Helper()
	listener, address := opened(t)
	r.Open(service, listener)
	return address
}

// dialFrom connects from an address of this machine, until the test ends.
func dialFrom(t testing.TB, source, address string) *net.TCPConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*net.TCPConn)
}

// TestGateway_silentConnectionsKeepNoClientOut lets one sender take every starting slot.
func TestGateway_silentConnectionsKeepNoClientOut(t *testing.T) {
	t.Parallel()
	for rule, row := range map[string]struct {
		source  string
		service Service
	}{
		"a client of another tenant":                             {"127.0.0.1", other},
		"a client of the same cluster":                           {"127.0.0.1", demo},
		"a client of another tenant behind the sender's address": {"127.0.0.9", other},
		"a client of the same cluster behind its address":        {"127.0.0.9", demo},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			const most = 20
			gateway := run(t, &fakeBackend{resolve: to(instance(t, trusting(echo)))}, func(l *Limits) { l.Starting = most })
			address := gateway.address
			if row.service != demo {
				address = gateway.open(t, row.service)
			}
			for range most + 1 {
				dialFrom(t, "127.0.0.9", gateway.address)
			}
			gateway.ledger.await(t, "refused too_many_starting", 1)
			conn := dialFrom(t, row.source, address)
			gateway.ledger.await(t, "refused too_many_starting", 2)
			send(t, conn, startupPacket)
			expect(t, conn, okay)
		})
	}
}

// TestGateway_tellsAClientThatBeginsTLSNothing takes the slot of one that has not sent its ClientHello.
func TestGateway_tellsAClientThatBeginsTLSNothing(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{}, func(l *Limits) { l.Starting = 1 })
	conn := dial(t, gateway.address)
	send(t, conn, startup.SSLRequest)
	expect(t, conn, []byte("S"))
	dial(t, gateway.address)
	if heard := expectEnd(t, conn); heard != "" {
		t.Errorf("the client read %q", heard)
	}
	gateway.ledger.await(t, "refused too_many_starting", 1)
}

// TestGateway_heldClientsOfOneTenantKeepNoOtherOut lets one tenant's clients take every slot for held clients.
func TestGateway_heldClientsOfOneTenantKeepNoOtherOut(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{}, func(l *Limits) { l.Held = 2 })
	address := gateway.open(t, other)
	first := dial(t, gateway.address)
	send(t, first, startupPacket)
	gateway.ledger.await(t, "held", 1)
	second := dial(t, gateway.address)
	send(t, second, startupPacket)
	gateway.ledger.await(t, "held", 2)

	third := dial(t, gateway.address)
	send(t, third, startupPacket)
	if said := expectEnd(t, third); said != refusedWith(t, errHeld) || !strings.Contains(said, "53300") {
		t.Errorf("a third client of the same cluster was told %q", said)
	}
	fourth := dial(t, address)
	send(t, fourth, startupPacket)
	if said := expectEnd(t, second); said != refusedWith(t, errHeld) {
		t.Errorf("the newest client of the cluster with two was told %q", said)
	}
	gateway.ledger.await(t, "refused too_many_held", 2)
	gateway.ledger.await(t, "held", 2)
}

// TestGateway_aFullTableRefusesNoWake wakes a cluster although there is no slot for its session.
func TestGateway_aFullTableRefusesNoWake(t *testing.T) {
	t.Parallel()
	target := instance(t, trusting(echo))
	var woken atomic.Int64
	backend := &fakeBackend{resolve: func(context.Context, Client) (netip.AddrPort, error) { woken.Add(1); return target, nil }}
	gateway := run(t, backend, func(l *Limits) { l.Spliced = 1 })
	session := dial(t, gateway.address)
	send(t, session, startupPacket)
	expect(t, session, okay)
	next := dial(t, gateway.open(t, other))
	send(t, next, startupPacket)
	if said := expectEnd(t, next); !strings.Contains(said, "57P03") || !strings.Contains(said, "connect again") {
		t.Errorf("it was told %q", said)
	}
	if woken.Load() != 2 {
		t.Errorf("%d clusters were woken", woken.Load())
	}
	gateway.ledger.await(t, "refused too_many_spliced", 1)
	if got := backend.active.Load(); got != 1 {
		t.Errorf("%d clients without a session count as activity, want 1", got)
	}
}

// TestGateway_aPeerThatMayNotComeTakesNoPlace checks that an allowed connection stays although refused peers keep connecting.
func TestGateway_aPeerThatMayNotComeTakesNoPlace(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{
		resolve: to(instance(t, trusting(echo))),
		refuses: func(peer netip.AddrPort) Refusal {
			if peer.Addr().String() == "127.0.0.9" {
				return RefusalNotAllowed
			}
			return ""
		},
	}
	gateway := run(t, backend, func(l *Limits) { l.Starting = 1 })
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket[:1])
	const count = 10
	for range count {
		expectEnd(t, dialFrom(t, "127.0.0.9", gateway.address))
	}
	gateway.ledger.await(t, "ignored not_allowed", count)
	send(t, conn, startupPacket[1:])
	expect(t, conn, okay)
}

// TestGateway_aPanicEndsOneConnection lets each method of the backend that is called for a client's connection panic.
func TestGateway_aPanicEndsOneConnection(t *testing.T) {
	t.Parallel()
	for rule, fail := range map[string]func(*fakeBackend){
		"when it is asked who may come": func(b *fakeBackend) {
			b.refuses = func(netip.AddrPort) Refusal { panic("a mistake of ours") }
		},
		"when it is asked where a session goes": func(b *fakeBackend) {
			b.resolve = func(context.Context, Client) (netip.AddrPort, error) { panic("a mistake of ours") }
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			backend := &fakeBackend{}
			fail(backend)
			gateway := run(t, backend, nil)
			conn := dial(t, gateway.address)
			send(t, conn, startupPacket)
			expectEnd(t, conn)
			gateway.ledger.await(t, "refused panic", 1)
			gateway.ledger.await(t, "held", 0)
		})
	}
}
