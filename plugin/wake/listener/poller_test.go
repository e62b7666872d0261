package listener

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func enter(t *testing.T) *Poller {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func TestListenersLeaveFileDescriptors(t *testing.T) {
	t.Parallel()
	e := enter(t)
	if most := e.Most(); most < 0 || most > 1<<30 {
		t.Errorf("this process may open %d ports", most)
	}
	e.most = 1
	first, err := e.Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Listen(t.Context(), 0); !errors.Is(err, ErrNoDescriptor) {
		t.Errorf("one too many: %v", err)
	}
	for range 2 { // closed twice it counts once
		_ = first.Close()
	}
	again, err := e.Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if _, err := e.Listen(t.Context(), 0); !errors.Is(err, ErrNoDescriptor) {
		t.Errorf("one too many after one was closed twice: %v", err)
	}
}

// Every connection is announced, those too that came while another was being accepted, and none after the end.
func TestEveryConnectionIsAnnounced(t *testing.T) {
	t.Parallel()
	e := enter(t)
	const listeners, clients = 20, 50
	accepted := make(chan int, listeners*clients)
	var addresses []string
	var opened []*Listener
	for i := range listeners {
		l, err := e.Listen(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		err = l.Announce(func() {
			if conn, err := l.Accept(); err == nil {
				_ = conn.Close()
				accepted <- i
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		addresses, opened = append(addresses, net.JoinHostPort("127.0.0.1", port)), append(opened, l)
	}
	var group sync.WaitGroup
	for range clients {
		for _, address := range addresses {
			group.Go(func() {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.Close()
			})
		}
	}
	group.Wait()
	counts := map[int]int{}
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for range listeners * clients {
		select {
		case i := <-accepted:
			counts[i]++
		case <-late.C:
			t.Fatalf("not every connection was announced: %v", counts)
		}
	}
	for i := range listeners {
		if counts[i] != clients {
			t.Errorf("listener %d had %d clients, want %d", i, counts[i], clients)
		}
	}
	for _, l := range opened {
		_ = l.Close()
	}
	if len(e.open) != 0 {
		t.Errorf("%d listeners are left", len(e.open))
	}
}
