package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience limits every wait of a test.
const patience = 2 * time.Minute

var demo = Service{Namespace: "shop", Name: "orders-rw", UID: "uid-1", Cluster: "orders"}

// fakeBackend answers as the test configures it; by default the cluster sleeps forever.
type fakeBackend struct {
	refuses func(netip.AddrPort) Refusal
	resolve func(context.Context, Client) (netip.AddrPort, error)
	running []netip.AddrPort
	looks   <-chan struct{} // until it is closed, which instances run is not known; nil: it is at once
	away    bool
	asked   func()      // whether a client is sent away
	begins  func() bool // whether a session may begin
	active  atomic.Int64

	resolved  atomic.Int64
	mutex     sync.Mutex
	addresses map[netip.AddrPort]netip.AddrPort // by the local address
}

func (d *fakeBackend) Refuses(_ Service, peer netip.AddrPort) Refusal {
	if d.refuses == nil {
		return ""
	}
	return d.refuses(peer)
}

func (d *fakeBackend) Resolve(ctx context.Context, _ Service, client Client) (netip.AddrPort, error) {
	d.resolved.Add(1)
	if d.resolve == nil {
		<-ctx.Done()
		return netip.AddrPort{}, ctx.Err()
	}
	return d.resolve(ctx, client)
}

func (d *fakeBackend) Running(ctx context.Context, _ Service) []netip.AddrPort {
	if d.looks != nil {
		select {
		case <-d.looks:
		case <-ctx.Done():
		}
	}
	return d.running
}

func (d *fakeBackend) MustReconnect(Service, netip.AddrPort) bool {
	if d.asked != nil {
		d.asked()
	}
	return d.away
}

func (d *fakeBackend) MayBegin(context.Context, Service) bool { return d.begins == nil || d.begins() }

func (d *fakeBackend) CountAsActive(context.Context, Service, netip.AddrPort) { d.active.Add(1) }

func (d *fakeBackend) SendClientAddress(_ context.Context, _, local, peer netip.AddrPort) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.addresses == nil {
		d.addresses = map[netip.AddrPort]netip.AddrPort{}
	}
	d.addresses[local] = peer
}

// to resolves to one address immediately.
func to(target netip.AddrPort) func(context.Context, Client) (netip.AddrPort, error) {
	return func(context.Context, Client) (netip.AddrPort, error) { return target, nil }
}

// ledger is an observer on which a test can wait.
type ledger struct {
	mutex   sync.Mutex
	counts  map[string]int
	changed chan struct{}
}

func newLedger() *ledger { return &ledger{counts: map[string]int{}, changed: make(chan struct{})} }

func (l *ledger) add(key string, change int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.counts[key] += change
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *ledger) Ignored(_ Service, reason string)             { l.add("ignored "+reason, 1) }
func (l *ledger) Refused(_ Service, reason RefusedReason)      { l.add("refused "+string(reason), 1) }
func (l *ledger) Held(_ Service, change int)                   { l.add("held", change) }
func (l *ledger) Spliced(_ Service, change int)                { l.add("spliced", change) }
func (l *ledger) Took(_ Service, phase Phase, _ time.Duration) { l.add("took "+string(phase), 1) }

// state returns the count, and a channel that is closed at the next change.
func (l *ledger) state(key string) (count int, c chan struct{}) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.counts[key], l.changed
}

// await waits until the count has the given value.
func (l *ledger) await(t testing.TB, key string, want int) {
	t.Helper()
	timeout := time.After(patience)
	for {
		got, changed := l.state(key)
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%s is %d, want %d", key, got, want)
		}
	}
}

// kind is kubectl's name for Clusters of an operator build with another API group.
const kind = "clusters.example.org"

// running is a gateway that serves one Service.
type running struct {
	*Gateway
	ledger   *ledger
	listener net.Listener
	address  string
}

// run serves demo, until the test ends.
func run(t testing.TB, backend Backend, edit func(*Limits)) running {
	t.Helper()
	limits := DefaultLimits()
	limits.StartupFor, limits.DialFor = patience, patience // this machine may be slower than a network has to be
	if edit != nil {
		edit(&limits)
	}
	r := running{ledger: newLedger()}
	r.Gateway = New(limits, kind, backend, r.ledger, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = r.Drain(ended)
		for _, key := range []string{"held", "spliced"} {
			if left, _ := r.ledger.state(key); left != 0 {
				t.Errorf("%d clients are %s when nothing runs any more", left, key)
			}
		}
		for name, slots := range map[string]*limiter{"starting": r.starting, "held": r.held} {
			if left := slots.left(); left != 0 {
				t.Errorf("%d entries of %s are left", left, name)
			}
		}
		if left := r.spliced.taken + len(r.spliced.clusters) + len(r.spliced.namespaces); left != 0 {
			t.Errorf("%d entries of sessions are left", left)
		}
	})
	r.listener, r.address = opened(t)
	r.Open(demo, r.listener)
	return r
}

// opened is a port of a gateway, and its address.
func opened(t testing.TB) (net.Listener, string) {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	must(t, err)
	return listener, fmt.Sprintf("127.0.0.1:%d", addrPort(listener.Addr()).Port())
}

// nobody is an address on which nobody listens: neither the kernel nor a test gives this port to anybody.
var nobody = netip.MustParseAddrPort("127.0.0.1:1")

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return listener
}

// dial connects, until the test ends.
func dial(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*net.TCPConn)
}

// instance is a fake server: every connection is handled by the function, and closed when that returns.
func instance(t testing.TB, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	listener := listen(t)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(patience))
				handle(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); work.Wait() })
	return addrPort(listener.Addr())
}

// startupPacket is the user ann's, and okay is the answer of a server that trusts her.
var (
	startupPacket = []byte("\x00\x00\x00\x12\x00\x03\x00\x00user\x00ann\x00\x00")
	// replicationPacket is the same with replication=1.
	replicationPacket = []byte("\x00\x00\x00\x20\x00\x03\x00\x00user\x00ann\x00replication\x001\x00\x00")
	okay              = []byte("R\x00\x00\x00\x08\x00\x00\x00\x00")
	cancelPacket      = []byte("\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01key.")
)

// trusting reads a startup packet, answers, and continues as the test says.
func trusting(then func(*net.TCPConn)) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		got := make([]byte, len(startupPacket))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != string(startupPacket) {
			return
		}
		_, _ = conn.Write(okay)
		then(conn)
	}
}

func echo(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }

// send writes, and expect reads exactly the answer.
func send(t testing.TB, conn net.Conn, content []byte) {
	t.Helper()
	_, err := conn.Write(content)
	must(t, err)
}

func expect(t testing.TB, conn net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != string(want) {
		t.Fatalf("read %q and %v, want %q", got[:n], err, want)
	}
}

// expectEnd reads until the connection ends, and returns what it read.
func expectEnd(t testing.TB, conn net.Conn) string {
	t.Helper()
	got, err := io.ReadAll(conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("the connection goes on after %q", got)
	}
	return string(got)
}

// refusedWith returns what a plaintext client reads when it is refused.
func refusedWith(t testing.TB, err error) string {
	t.Helper()
	told := explain(err, kind, demo)
	packet, err := startup.Refuse(told.state, told.message)
	must(t, err)
	return string(packet)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var errOther = errors.New("something else")
