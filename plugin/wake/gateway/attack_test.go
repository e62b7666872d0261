package gateway

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// attack is what ten sources do to a gateway concurrently, until it ends.
type attack struct {
	addresses []string
	own       int // how many of the addresses they have sessions of
	each      int // connections of each source and kind
	hello     []byte
	opened    atomic.Int64
}

// unread is the last kind of connection.
const unread = 4

// run holds connections of each kind: silent, half-open with and without TLS, complete ClientHellos, and sessions whose answers
// are not read. It keeps reopening them.
func (a *attack) run(ctx context.Context) {
	var work sync.WaitGroup
	for number := range 10 {
		source := fmt.Sprintf("127.0.1.%d", number+1)
		for kind := range unread + 1 {
			work.Go(func() { a.press(ctx, source, kind) })
		}
	}
	work.Wait()
}

// press holds as many connections of a kind as possible, to one address after the other.
func (a *attack) press(ctx context.Context, source string, kind int) {
	said := [][]byte{nil, startupPacket[:7], append(append([]byte{}, startup.SSLRequest...), 0), a.hello, startupPacket}[kind]
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Second}
	held := make([]net.Conn, a.each)
	defer func() {
		for _, conn := range held {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}()
	for i := 0; ctx.Err() == nil; i++ {
		at := i % a.each
		if held[at] != nil {
			_ = held[at].Close()
			held[at] = nil
		}
		addresses := a.addresses
		if kind == unread {
			addresses = addresses[:a.own]
		}
		conn, err := dialer.DialContext(ctx, "tcp", addresses[i%len(addresses)])
		if err != nil {
			continue
		}
		a.opened.Add(1)
		held[at] = conn
		_, _ = conn.Write(said)
		if i >= a.each { // slower once all are open
			pause(ctx, 5*time.Millisecond)
		}
	}
}

// TestGateway_servesClientsUnderAttack is a load test: ten sources hold as much as they can at every port of a hundred clusters,
// and sessions of fifty, while a client of each of the other fifty wants a session. It is not parallel, because it measures the
// process.
func TestGateway_servesClientsUnderAttack(t *testing.T) {
	const clusters, honest, each = 100, 50, 120
	const most = 96 << 20 // additional memory, including the attackers' ends
	chunk := make([]byte, 64<<10)
	firehose := instance(t, trusting(func(conn *net.TCPConn) {
		for {
			if _, err := conn.Write(chunk); err != nil {
				return
			}
		}
	}))
	target := instance(t, trusting(echo))
	backend := &fakeBackend{resolve: func(ctx context.Context, client Client) (netip.AddrPort, error) {
		switch {
		case !strings.HasPrefix(client.Peer.Addr().String(), "127.0.1."):
			pause(ctx, 200*time.Millisecond) // the wake
			return target, ctx.Err()
		case client.User == "": // TLS hides it
			<-ctx.Done()
			return netip.AddrPort{}, ctx.Err()
		default:
			return firehose, nil
		}
	}}
	gateway := run(t, backend, func(l *Limits) { l.Starting, l.Held, l.Spliced = 512, 256, 600 })
	a := &attack{own: honest, each: each, hello: recordedHello(t)}
	for i := range clusters {
		tenant := i % 10 // ten tenants of the attackers, and fifty others
		if i >= honest {
			tenant = i
		}
		service := Service{Namespace: "tenant-" + strconv.Itoa(tenant), Name: "orders-rw", UID: types.UID(strconv.Itoa(i)), Cluster: "orders-" + strconv.Itoa(i)}
		a.addresses = append(a.addresses, gateway.open(t, service))
	}
	before := inUse()
	attacking, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.run(attacking) }()
	for _, key := range []string{"refused too_many_starting", "refused too_many_held"} {
		gateway.ledger.reaches(t, key, 20)
	}

	grew := inUse() - before
	var clients sync.WaitGroup
	var slowest atomic.Int64
	for i := range honest {
		clients.Go(func() {
			began := time.Now()
			conn := dialFrom(t, fmt.Sprintf("127.0.2.%d", i+1), a.addresses[honest+i])
			if _, err := conn.Write(startupPacket); err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
			answer := make([]byte, len(okay))
			if n, err := conn.Read(answer); err != nil || string(answer[:n]) != string(okay) {
				t.Errorf("client %d read %q and %v", i, answer[:n], err)
			}
			took := int64(time.Since(began))
			for slow := slowest.Load(); took > slow && !slowest.CompareAndSwap(slow, took); slow = slowest.Load() {
			}
		})
	}
	clients.Wait()
	t.Logf("%d connections of attackers; the slowest of %d clients was answered after %s; %.1f MiB more were in use",
		a.opened.Load(), honest, time.Duration(slowest.Load()).Round(time.Millisecond), float64(grew)/(1<<20))
	if grew > most {
		t.Errorf("%d bytes more are in use, want at most %d", grew, most)
	}
	end()
	<-ended
}

// reaches waits until the count is at least the given number.
func (l *ledger) reaches(t testing.TB, key string, want int) {
	t.Helper()
	timeout := time.After(patience)
	for {
		got, changed := l.state(key)
		if got >= want {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%s is %d, want at least %d", key, got, want)
		}
	}
}

// recordedHello is psql's ClientHello with direct TLS, as recorded.
func recordedHello(t *testing.T) []byte {
	t.Helper()
	content, err := os.ReadFile("../startup/testdata/psql-17-direct.txt")
	must(t, err)
	line, _, _ := strings.Cut(strings.TrimPrefix(string(content), "client "), "\n")
	hello, err := hex.DecodeString(line)
	must(t, err)
	return hello
}
