package gateway

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
	"k8s.io/apimachinery/pkg/types"
)

// inUse returns the bytes in use by the process's heap and stacks.
func inUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse)
}

// TestAThousandHalfOpenConnectionsCostLittle checks the memory of connections that never complete a startup packet, and that a
// client is served meanwhile. It is not parallel, because it measures the process.
func TestAThousandHalfOpenConnectionsCostLittle(t *testing.T) {
	const count, most = 1000, 16 << 10 // including the test's own end of each connection
	target := instance(t, trusting(echo))
	gateway := run(t, &fakeBackend{resolve: to(target)}, nil)
	before := inUse()
	for i := range count {
		conn := dial(t, gateway.address)
		switch i % 3 {
		case 0:
			send(t, conn, startupPacket[:1])
		case 1:
			send(t, conn, startup.SSLRequest)
			expect(t, conn, []byte("S"))
			send(t, conn, []byte{0x16, 3, 1, 0x40, 0, 1})
		}
	}
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)
	each := (inUse() - before) / count
	t.Logf("%d bytes for each half-open connection", each)
	if each > most {
		t.Errorf("a half-open connection takes %d bytes, more than %d", each, most)
	}
}

// TestAFloodWakesNothing sends what scanners and confused clients send, all at once.
func TestAFloodWakesNothing(t *testing.T) {
	t.Parallel()
	const count = 1000
	backend := &fakeBackend{}
	gateway := run(t, backend, nil)
	kinds := [][]byte{nil, []byte("\x16\x03\x01\x00\x05hello"), cancelPacket, replicationPacket}
	var flood sync.WaitGroup
	for i := range count {
		flood.Go(func() {
			conn, err := net.Dial("tcp", gateway.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			if _, err := conn.Write(kinds[i%len(kinds)]); err != nil {
				t.Error(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	flood.Wait()
	for _, key := range []string{"ignored bare_connect", "ignored garbage", "ignored cancel", "refused replication"} {
		gateway.ledger.await(t, key, count/len(kinds))
	}
	if asked := backend.resolved.Load(); asked != 0 {
		t.Errorf("Resolve was asked %d times", asked)
	}
}

// BenchmarkListeners measures the resident memory of idle listeners: 20,000 of them, or as many as the process may have file
// descriptors.
func BenchmarkListeners(b *testing.B) {
	const wanted = 20_000
	descriptors := unix.Rlimit{Cur: wanted + keptBack, Max: wanted + keptBack}
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &descriptors) // allowed only for root
	way, err := NewOpener()
	must(b, err)
	count := min(wanted, way.Most())
	for b.Loop() {
		gateway := New(DefaultLimits(), kind, &fakeBackend{}, newLedger(), slog.New(slog.DiscardHandler))
		before := resident(b)
		for i := range count {
			listener, err := way.Listen(b.Context(), 0)
			must(b, err)
			gateway.Open(Service{UID: types.UID(strconv.Itoa(i)), Cluster: "orders"}, listener)
		}
		after := resident(b)
		b.ReportMetric(float64(after-before)/float64(count), "resident-bytes/listener")
		b.ReportMetric(float64(count), "listeners")
		b.ReportMetric(float64(after-before)/(1<<20), "resident-MiB")
		if err := gateway.Drain(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// resident returns the process's resident memory in bytes, without what the runtime could return.
func resident(b *testing.B) int64 {
	b.Helper()
	debug.FreeOSMemory()
	content, err := os.ReadFile("/proc/self/statm")
	must(b, err)
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	must(b, err)
	return pages * int64(os.Getpagesize())
}

// BenchmarkThroughput compares a session through the gateway with a direct one, with 1 MiB writes from the server as in a COPY.
func BenchmarkThroughput(b *testing.B) {
	chunk := make([]byte, 1<<20)
	target := instance(b, trusting(func(conn *net.TCPConn) {
		for {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	}))
	each(b, target, func(b *testing.B, conn net.Conn) {
		b.SetBytes(int64(len(chunk)))
		buffer := make([]byte, len(chunk))
		for b.Loop() {
			if _, err := io.ReadFull(conn, buffer); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRoundTrip compares the time of a small query and its answer.
func BenchmarkRoundTrip(b *testing.B) {
	each(b, instance(b, trusting(echo)), func(b *testing.B, conn net.Conn) {
		query := make([]byte, 100)
		for b.Loop() {
			if _, err := conn.Write(query); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(conn, query); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// each runs the benchmark directly and through the gateway.
func each(b *testing.B, target netip.AddrPort, benchmark func(*testing.B, net.Conn)) {
	b.Helper()
	gateway := run(b, &fakeBackend{resolve: to(target)}, nil)
	for name, address := range map[string]string{"direct": target.String(), "gateway": gateway.address} {
		b.Run(name, func(b *testing.B) {
			conn := dial(b, address)
			send(b, conn, startupPacket)
			expect(b, conn, okay)
			benchmark(b, conn)
		})
	}
}
