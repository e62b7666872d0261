package gateway

import (
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a listener whose process has no file descriptors left, until it is closed.
type failing struct {
	closed chan struct{}
	asked  []time.Time
}

func (f *failing) Accept() (net.Conn, error) {
	f.asked = append(f.asked, time.Now())
	select {
	case <-f.closed:
		return nil, &net.OpError{Op: "accept", Err: net.ErrClosed}
	default:
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
}

func (f *failing) Close() error   { close(f.closed); return nil }
func (f *failing) Addr() net.Addr { return &net.TCPAddr{} }

func TestAListenerThatFailsIsTriedEverySecondUntilItIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gateway := New(DefaultLimits(), kind, &fakeBackend{}, newLedger(), slog.New(slog.DiscardHandler))
		listener := &failing{closed: make(chan struct{})}
		began := time.Now()
		gateway.Open(demo, listener)
		time.Sleep(2500 * time.Millisecond) // of the bubble's time
		must(t, gateway.Drain(t.Context()))
		if len(listener.asked) != 4 { // the last time it is closed
			t.Fatalf("asked %d times", len(listener.asked))
		}
		for i, want := range []time.Duration{0, time.Second, 2 * time.Second} {
			if got := listener.asked[i].Sub(began); got != want {
				t.Errorf("attempt %d came after %v, want %v", i, got, want)
			}
		}
	})
}
