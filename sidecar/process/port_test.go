package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/internal/porttest"
)

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// serve runs the supervisor's side on real sockets until the test ends, and returns its port's address.
func serve(t *testing.T, socket string) string {
	t.Helper()
	address := porttest.Address(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ServeReadiness(ctx, address, socket, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return address
}

// eventually fails the test unless what is asked becomes true.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ask(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// probe connects as the kubelet does.
func probe(address string) error {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err
	}
	return conn.Close()
}

func TestServeReadiness_leasesARealPort(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "readiness.sock")
	address := serve(t, socket)
	worker := NewReadiness(socket)
	eventually(t, "the supervisor answers", func() bool { return worker.Restore() == nil })
	for range 20 { // each leaves a connection behind that the port must not mind
		if err := probe(address); err != nil {
			t.Fatalf("an open port refuses: %v", err)
		}
		if err := worker.Withdraw(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := probe(address); !errors.Is(err, syscall.ECONNREFUSED) && worker.Held() { // the lease ends if this machine stands still
			t.Fatalf("a closed port answers %v", err)
		}
		if err := worker.Restore(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServeReadiness_acceptsAndCloses(t *testing.T) {
	t.Parallel()
	address := serve(t, filepath.Join(t.TempDir(), "readiness.sock"))
	eventually(t, "the port is open", func() bool { return probe(address) == nil })
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if sent, err := io.ReadAll(conn); err != nil || len(sent) != 0 {
		t.Errorf("got %q, %v; want a plain end, since a reset may fail the probe", sent, err)
	}
}

func TestServeReadiness_isOpenWithoutItsSocket(t *testing.T) {
	t.Parallel()
	address := serve(t, filepath.Join(t.TempDir(), "absent", "readiness.sock"))
	eventually(t, "the port is open", func() bool { return probe(address) == nil })
}

func TestServeReadiness_opensThePortWhenItIsFree(t *testing.T) {
	t.Parallel()
	other, err := net.Listen("tcp", porttest.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	port := &tcpPort{address: other.Addr().String()}
	defer port.close()
	if port.open(t.Context()) == nil {
		t.Error("a port of somebody else's was opened")
	}
	_ = other.Close()
	for range 2 {
		if err := port.open(t.Context()); err != nil {
			t.Error(err)
		}
	}
	port.close()
	port.close()
}
