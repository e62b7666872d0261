package process

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePort records whether the port is open, and fails to open while told to.
type fakePort struct {
	mu     sync.Mutex
	isOpen bool
	fails  bool
	opens  int
}

func (p *fakePort) open(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails {
		return errors.New("no port")
	}
	if !p.isOpen {
		p.opens++
	}
	p.isOpen = true
	return nil
}

func (p *fakePort) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isOpen = false
}

func (p *fakePort) fail(fails bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails = fails
}

// fakeListener is the supervisor's socket in memory.
type fakeListener struct {
	clients chan net.Conn
	closed  chan struct{}
	once    sync.Once

	mu       sync.Mutex
	deadline time.Time
}

func (f *fakeListener) SetDeadline(deadline time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deadline = deadline
	return nil
}

func (f *fakeListener) Accept() (net.Conn, error) {
	f.mu.Lock()
	var expired <-chan time.Time
	if !f.deadline.IsZero() {
		timer := time.NewTimer(time.Until(f.deadline))
		defer timer.Stop()
		expired = timer.C
	}
	f.mu.Unlock()
	select {
	case conn := <-f.clients:
		return conn, nil
	case <-expired:
		return nil, os.ErrDeadlineExceeded
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

func (f *fakeListener) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *fakeListener) Addr() net.Addr { return &net.UnixAddr{} }

// world is a supervisor in a synctest bubble.
type world struct {
	t        *testing.T
	port     *fakePort
	listener *fakeListener
}

// live runs a test with a supervisor.
func live(t *testing.T, test func(*world)) {
	t.Helper()
	liveWith(t, func(p *fakePort) *lease { return &lease{port: p, logger: slog.New(slog.DiscardHandler)} }, test)
}

// liveWith is live with that lease.
func liveWith(t *testing.T, lease func(*fakePort) *lease, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, port: &fakePort{}, listener: &fakeListener{clients: make(chan net.Conn), closed: make(chan struct{})}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- lease(w.port).serve(ctx, w.listener)
		}()
		test(w)
		cancel()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the supervisor's side ended with %v", err)
		}
	})
}

// worker returns a new worker's client. The worker is hung while its connections are stopped.
func (w *world) worker() *Readiness {
	return &Readiness{dial: func(ctx context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case w.listener.clients <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
}

// expect fails the test unless the port is in that state now.
func (w *world) expect(open bool, when string) {
	w.t.Helper()
	synctest.Wait()
	w.port.mu.Lock()
	defer w.port.mu.Unlock()
	if w.port.isOpen != open {
		w.t.Errorf("%s: open is %t, want %t", when, w.port.isOpen, open)
	}
}

// withdraw withdraws the pod in the name of a worker, and returns what kills the worker.
func (w *world) withdraw(worker *Readiness) (kill func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	if err := worker.Withdraw(ctx); err != nil {
		w.t.Error(err)
	}
	if !worker.Held() {
		w.t.Error("the lease is not held")
	}
	return cancel
}

func (w *world) restore(worker *Readiness) {
	w.t.Helper()
	if err := worker.Restore(); err != nil {
		w.t.Error(err)
	}
}

func TestLease_isClosedWhileTheWorkerKeepsIt(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		w.expect(true, "without a worker")
		worker := w.worker()
		kill := w.withdraw(worker)
		defer kill()
		w.expect(false, "at once")
		time.Sleep(time.Hour)
		w.expect(false, "an hour later")
		if !worker.Held() {
			t.Error("the lease is not held for an hour")
		}
		w.restore(worker)
		w.expect(true, "released")
		if worker.Held() {
			t.Error("a released lease is held")
		}
	})
}

// The container may have been restarted during a doze.
func TestLease_isTakenAtFirst(t *testing.T) {
	t.Parallel()
	started := func(p *fakePort) *lease { return newLease(p, slog.New(slog.DiscardHandler)) }
	liveWith(t, started, func(w *world) {
		w.expect(false, "before the worker knows")
		w.restore(w.worker())
		w.expect(true, "once it does")
	})
	liveWith(t, started, func(w *world) {
		time.Sleep(leaseDuration - time.Millisecond)
		w.expect(false, "while a worker may start")
		time.Sleep(2 * time.Millisecond)
		w.expect(true, "without a worker")
	})
}

func TestLease_outlivesTheWorkerByFiveSeconds(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		after time.Duration
		opens int // the first is at the start
	}{
		{"a worker that is started again at once takes it over", 100 * time.Millisecond, 1},
		{"so does one that the supervisor makes wait", 3900 * time.Millisecond, 1},
		{"one that is too late closes the port again", 6 * time.Second, 2},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(w *world) {
				kill := w.withdraw(w.worker())
				time.Sleep(10 * time.Second)
				kill()
				time.Sleep(row.after)
				kill = w.withdraw(w.worker())
				defer kill()
				w.expect(false, "taken over")
				time.Sleep(10 * time.Second)
				w.expect(false, "kept")
				if w.port.opens != row.opens {
					t.Errorf("the port was opened %d times, want %d", w.port.opens, row.opens)
				}
				kill()
				time.Sleep(leaseDuration + time.Millisecond)
				w.expect(true, "without a worker")
			})
		})
	}
}

func TestLease_endsForAWorkerThatHangs(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		conn, err := w.worker().dial(w.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := ask(w.t.Context(), conn, withdraw, withdrawn); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseDuration - time.Millisecond)
		w.expect(false, "just before")
		time.Sleep(2 * time.Millisecond)
		w.expect(true, "just after")
		if err := ask(w.t.Context(), conn, withdraw, withdrawn); err == nil {
			t.Error("a worker is not told that its lease has ended")
		}
		_ = conn.Close()
	})
}

func TestLease_isNotKeptBySilentOrStrangeClients(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		silent, err := w.worker().dial(w.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = silent.Close() }()
		time.Sleep(leaseDuration + time.Millisecond)
		strange, err := w.worker().dial(w.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = strange.Close() }()
		if err := ask(w.t.Context(), strange, '?', withdrawn); err == nil {
			t.Error("an unknown request is answered")
		}
		w.expect(true, "nobody asked to close it")
		worker := w.worker()
		defer w.withdraw(worker)()
		w.expect(false, "the next client is served")
	})
}

func TestLease_opensThePortAsSoonAsThatWorks(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		worker := w.worker()
		defer w.withdraw(worker)()
		w.port.fail(true)
		if err := worker.Restore(); err == nil {
			t.Error("a port that is not open is called open")
		}
		w.expect(false, "it cannot be opened")
		time.Sleep(time.Minute)
		w.port.fail(false)
		time.Sleep(retryInterval)
		w.expect(true, "it is tried again")
		w.restore(worker)
	})
}
