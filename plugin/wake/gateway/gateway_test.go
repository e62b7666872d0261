package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// TestWhatIsNoClientWakesNothing checks that a connection that is not a client's is closed, counted and never reaches Resolve.
func TestWhatIsNoClientWakesNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		send   []byte
		hangUp bool
		want   string
	}{
		{"a bare connect", nil, true, "ignored bare_connect"},
		{"a connection that says nothing", nil, false, "ignored timeout"},
		{"garbage", []byte("GET / HTTP/1.1\r\n\r\n"), false, "ignored garbage"},
		{"half a startup packet", startupPacket[:10], true, "ignored incomplete"},
		{"SSLRequest alone", startup.SSLRequest, true, "ignored incomplete"},
		{"bytes ahead of the answer to SSLRequest", append(append([]byte{}, startup.SSLRequest...), 22, 3, 1), false, "ignored pipelined"},
		{"a CancelRequest for a sleeping cluster", cancelPacket, false, "ignored cancel"},
		{"a startup packet that asks for replication", replicationPacket, false, "refused replication"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			backend := &fakeBackend{}
			gateway := run(t, backend, func(l *Limits) {
				if row.want == "ignored timeout" {
					l.StartupFor = time.Millisecond
				}
			})
			conn := dial(t, gateway.address)
			send(t, conn, row.send)
			if row.hangUp {
				must(t, conn.CloseWrite())
			}
			expectEnd(t, conn)
			gateway.ledger.await(t, row.want, 1)
			if asked := backend.resolved.Load(); asked != 0 {
				t.Errorf("Resolve was asked %d times", asked)
			}
		})
	}
}

func TestAPeerThatIsRefusedIsClosedUnread(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{refuses: func(peer netip.AddrPort) Refusal {
		if !peer.Addr().Is4() {
			return ""
		}
		return RefusalInstance
	}}
	gateway := run(t, backend, nil)
	if said := expectEnd(t, dial(t, gateway.address)); said != "" {
		t.Errorf("it was told %q", said)
	}
	gateway.ledger.await(t, "ignored instance", 1)
}

// TestARefusedClientIsToldWhy checks what a plaintext client reads for every error.
func TestARefusedClientIsToldWhy(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		resolve error
		told    error
		text    string
	}{
		{"asleep by hand", ErrAsleepByHand, ErrAsleepByHand, "is asleep and does not wake on connection; to wake it, once its pods are gone: kubectl annotate -n shop clusters.example.org orders cnpg.io/hibernation-"},
		{"maintenance", ErrMaintenance, ErrMaintenance, "reusePVC false: the operator would delete the volumes of an instance that cannot be scheduled; end the maintenance, or set reusePVC to true"},
		{"reconnect", ErrReconnect, ErrReconnect, "connect again, because its pg_hba"},
		{"reconnect to what only the client reaches", ErrReconnectDirectly, ErrReconnectDirectly, "cannot reach its instances; connect again"},
		{"timeout", ErrTimeout, ErrTimeout, "did not wake in time"},
		{"any other error", errOther, errOther, "could not be woken"},
		{"an instance that is not there", nil, errUnreachable, "does not accept"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			backend := &fakeBackend{resolve: func(context.Context, Client) (netip.AddrPort, error) { return nobody, row.resolve }}
			gateway := run(t, backend, nil)
			conn := dial(t, gateway.address)
			send(t, conn, startupPacket)
			if said := expectEnd(t, conn); said != refusedWith(t, row.told) || !strings.Contains(said, row.text) || !strings.Contains(said, "57P03") {
				t.Errorf("it was told %q", said)
			}
		})
	}
}

func TestAClientIsHeldForALimitedTime(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{}, func(l *Limits) { l.HeldFor = time.Millisecond })
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	if said := expectEnd(t, conn); said != refusedWith(t, ErrTimeout) {
		t.Errorf("it was told %q", said)
	}
}

func TestHold_logsALongWait(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	limits := DefaultLimits()
	limits.HeldFor, limits.LongWait = time.Millisecond, time.Millisecond
	gateway := New(limits, kind, &fakeBackend{}, newLedger(), slog.New(slog.NewTextHandler(&log, nil)))
	listener, address := opened(t)
	gateway.Open(demo, listener)
	conn := dial(t, address)
	send(t, conn, startupPacket)
	expectEnd(t, conn)
	must(t, gateway.Drain(t.Context()))
	if said := log.String(); !strings.Contains(said, `msg="a client waited for long"`) || !strings.Contains(said, "served=false") {
		t.Errorf("it logged %q", said)
	}
}

// TestAClientThatHangsUpWhileHeldGivesItsPlace tests an orderly end and a reset.
func TestAClientThatHangsUpWhileHeldGivesItsPlace(t *testing.T) {
	t.Parallel()
	for rule, hangUp := range map[string]func(*net.TCPConn) error{
		"an end":  func(conn *net.TCPConn) error { return conn.CloseWrite() },
		"a reset": func(conn *net.TCPConn) error { return errors.Join(conn.SetLinger(0), conn.Close()) },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			gateway := run(t, &fakeBackend{}, func(l *Limits) { l.Held = 1 })
			conn := dial(t, gateway.address)
			send(t, conn, startupPacket)
			gateway.ledger.await(t, "held", 1)
			must(t, hangUp(conn))
			gateway.ledger.await(t, "held", 0)
			gateway.ledger.await(t, "refused hung_up", 1)
		})
	}
}

// A Service that is no longer served accepts no new connections. Existing ones are served to the end: a held one, one whose
// startup packet is not complete, and a session.
func TestCloseLeavesWhoIsHere(t *testing.T) {
	t.Parallel()
	target := instance(t, trusting(echo))
	awake := make(chan struct{})
	var asleep atomic.Bool
	backend := &fakeBackend{resolve: func(ctx context.Context, _ Client) (netip.AddrPort, error) {
		if !asleep.Load() {
			return target, nil
		}
		select {
		case <-awake:
			return target, nil
		case <-ctx.Done():
			return netip.AddrPort{}, ctx.Err()
		}
	}}
	gateway := run(t, backend, nil)

	session := dial(t, gateway.address)
	send(t, session, startupPacket)
	expect(t, session, okay)
	asleep.Store(true)
	held, packet := dial(t, gateway.address), dial(t, gateway.address)
	send(t, held, startupPacket)
	gateway.ledger.await(t, "held", 1)
	send(t, packet, []byte("\x00\x00\x00\x08\x04\xd2\x16\x30")) // GSSENCRequest
	expect(t, packet, []byte("N"))

	gateway.Close(demo.UID)
	gateway.Close(demo.UID)
	if _, err := gateway.listener.Accept(); !errors.Is(err, net.ErrClosed) { // somebody else may have got the port by now
		t.Errorf("the port is open: %v", err)
	}
	send(t, packet, startupPacket)
	gateway.ledger.await(t, "held", 2)
	close(awake)
	expect(t, packet, okay)
	expect(t, held, okay)
	for _, conn := range []net.Conn{held, packet, session} {
		send(t, conn, []byte("still here"))
		expect(t, conn, []byte("still here"))
	}
}

func TestDrainWaitsForSessionsAndThenCutsThem(t *testing.T) {
	t.Parallel()
	target := instance(t, trusting(echo))
	gateway := run(t, &fakeBackend{resolve: to(target)}, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)

	ctx, end := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- gateway.Drain(ctx) }()
	if _, err := gateway.listener.Accept(); !errors.Is(err, net.ErrClosed) { // the listener ends first
		t.Errorf("the port is open: %v", err)
	}
	send(t, conn, []byte("still here"))
	expect(t, conn, []byte("still here"))
	select {
	case err := <-drained:
		t.Fatalf("drained before the session ended: %v", err)
	default:
	}
	end()
	if err := <-drained; !errors.Is(err, context.Canceled) {
		t.Errorf("Drain returned %v", err)
	}
	expectEnd(t, conn)

	late, _ := opened(t)
	gateway.Open(demo, late)
	if _, err := late.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a drained gateway opens: %v", err)
	}
}

// A stopping replica still wakes the clusters of the clients that it holds, because inside TLS it cannot tell them to reconnect.
func TestDrainServesHeldClients(t *testing.T) {
	t.Parallel()
	target := instance(t, trusting(echo))
	awake := make(chan struct{})
	gateway := run(t, &fakeBackend{resolve: func(ctx context.Context, _ Client) (netip.AddrPort, error) {
		select {
		case <-awake:
			return target, nil
		case <-ctx.Done():
			return netip.AddrPort{}, ctx.Err()
		}
	}}, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	gateway.ledger.await(t, "held", 1)
	drained := make(chan error, 1)
	go func() { drained <- gateway.Drain(t.Context()) }()
	if _, err := gateway.listener.Accept(); !errors.Is(err, net.ErrClosed) { // the listener ends first
		t.Errorf("the port is open: %v", err)
	}
	close(awake)
	expect(t, conn, okay)
	must(t, conn.Close())
	must(t, <-drained)
}

func TestDrainSendsHeldClientsElsewhereInTheEnd(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{}, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	gateway.ledger.await(t, "held", 1)
	packet := dial(t, gateway.address)
	send(t, packet, startup.SSLRequest)
	expect(t, packet, []byte("S"))
	ended, end := context.WithCancel(t.Context())
	end()
	if err := gateway.Drain(ended); err != nil { // no session was cut
		t.Errorf("Drain returned %v", err)
	}
	if said := expectEnd(t, conn); said != refusedWith(t, errClosed) {
		t.Errorf("it was told %q", said)
	}
	if said := expectEnd(t, packet); said != "" {
		t.Errorf("who had not said yet what it is was told %q", said)
	}
	gateway.ledger.await(t, "ignored closed", 1)
}

func TestDrain_saysHowManySessionsItCut(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{resolve: to(instance(t, trusting(echo)))}, nil)
	for range 3 {
		conn := dial(t, gateway.address)
		send(t, conn, startupPacket)
		expect(t, conn, okay)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := gateway.Drain(ended); err == nil || !strings.Contains(err.Error(), "3 sessions were cut") {
		t.Errorf("Drain returned %v", err)
	}
}

func TestDrainEndsWithTheLastSession(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{resolve: to(instance(t, trusting(echo)))}, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)
	drained := make(chan error, 1)
	go func() { drained <- gateway.Drain(t.Context()) }()
	must(t, conn.Close())
	must(t, <-drained)
}

func TestReasonsAreListedOnce(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	all := IgnoredReasons()
	for _, reason := range RefusedReasons() {
		all = append(all, "refused "+string(reason))
	}
	for _, phase := range Phases() {
		all = append(all, "phase "+string(phase))
	}
	for _, name := range all {
		if seen[name] {
			t.Errorf("%s is listed twice", name)
		}
		seen[name] = true
	}
	if len(all) != 2+6+3+15+3 {
		t.Errorf("%d are listed", len(all))
	}
}
