package process

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// paused is a connection of a process that is paused for 20 seconds before one of its writes.
type paused struct {
	net.Conn
	writes, before int
}

func (p *paused) Write(b []byte) (int, error) {
	if p.writes++; p.writes == p.before {
		time.Sleep(20 * time.Second)
	}
	return p.Conn.Write(b)
}

func TestReadiness_mayBeAskedAgain(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		worker := w.worker()
		w.restore(worker)
		w.restore(worker)
		for range 2 {
			defer w.withdraw(worker)()
			w.expect(false, "withdrawn")
		}
		w.restore(worker)
		w.restore(worker)
		w.expect(true, "restored")
		if w.port.opens != 2 {
			t.Errorf("the port was opened %d times", w.port.opens)
		}
	})
}

func TestReadiness_opensWhatAnEarlierWorkerClosed(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		w.withdraw(w.worker())()
		w.expect(false, "the earlier worker is dead")
		w.restore(w.worker())
		w.expect(true, "at once")
	})
}

func TestReadiness_takesTheLeaseAnewAfterItsContextEnded(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		worker := w.worker()
		w.withdraw(worker)()
		if worker.Held() {
			t.Error("a lease that is not renewed is held")
		}
		defer w.withdraw(worker)()
		time.Sleep(time.Minute)
		w.expect(false, "renewed")
		w.restore(worker)
	})
}

// A worker that was paused closes the port again, and knows that it was open meanwhile.
func TestReadiness_knowsThatTheLeaseWasBroken(t *testing.T) {
	t.Parallel()
	live(t, func(w *world) {
		worker := w.worker()
		dial := worker.dial
		dials := 0
		worker.dial = func(ctx context.Context) (net.Conn, error) {
			dials++
			conn, err := dial(ctx)
			if err != nil || dials > 1 {
				return conn, err
			}
			return &paused{Conn: conn, before: 3}, nil
		}
		defer w.withdraw(worker)()
		time.Sleep(2*renewInterval + leaseDuration + renewInterval)
		w.expect(true, "paused")
		if worker.Held() {
			t.Error("a lease that ended is held")
		}
		time.Sleep(time.Minute)
		w.expect(false, "the pause is over")
		if worker.Held() {
			t.Error("a lease that was broken is held")
		}
		defer w.withdraw(worker)()
		w.restore(worker)
	})
}

func TestReadiness_failsWithoutASupervisor(t *testing.T) {
	t.Parallel()
	worker := &Readiness{dial: func(context.Context) (net.Conn, error) { return nil, errors.New("nobody") }}
	if worker.Withdraw(t.Context()) == nil || worker.Restore() == nil || worker.Held() {
		t.Error("what nobody did is called done")
	}
}
