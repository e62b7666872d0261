// Package fence observes whether CloudNativePG's instance manager has obeyed a fence, the annotation by which PostgreSQL is stopped
// and its pod kept.
//
// The instance manager obeys late: behind other work, and not for 25 seconds after a fence was lifted. It also finishes a stop
// that it has begun, even if the fence is lifted meanwhile, and PostgreSQL accepts sessions up to then, which are cut. So neither
// the annotation nor PostgreSQL's answers tell whether a session will last. Two things do, and need no login: the lock file of
// PostgreSQL's socket identifies the process, and the instance manager says whether it expects it to be down.
package fence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// busyPoll is the first interval between two readings of the lock file. A restart takes 50 to 100 milliseconds.
	busyPoll = 20 * time.Millisecond
	// calmPoll is the next, and idlePoll that of a stop that takes long.
	calmPoll, idlePoll = 100 * time.Millisecond, time.Second
	// busyStop and calmStop are how long a stop may take until the intervals grow, busyStart how long a start may take.
	busyStop, calmStop, busyStart = 2 * time.Second, 10 * time.Second, 10 * time.Second
	// tryEvery is the interval between two connections to a socket whose lock file does not go away.
	tryEvery = time.Second
	// askEvery is the interval between two questions to the instance manager, which queries PostgreSQL for each.
	askEvery = time.Second
	// lookEvery is the interval between two looks for a postmaster that may not be started.
	lookEvery = time.Second
	// dialTimeout bounds a connection to the socket, whose queue may be full.
	dialTimeout = 500 * time.Millisecond
)

// Server asks PostgreSQL whether it accepts sessions.
type Server interface {
	Accepts(ctx context.Context) (bool, error)
}

// Observer observes one instance. Its methods may be called from any goroutine.
type Observer struct {
	server   Server
	read     func() (Postmaster, error)
	refuses  func(ctx context.Context) bool
	stopping func(ctx context.Context) (bool, error)
}

// NewObserver makes an observer of the instance in this pod, whose PostgreSQL has a Unix socket for the port in that directory.
func NewObserver(socketDirectory string, port uint16, server Server) *Observer {
	socket := filepath.Join(socketDirectory, ".s.PGSQL."+strconv.Itoa(int(port)))
	return &Observer{
		server:   server,
		read:     func() (Postmaster, error) { return readLock(socket + ".lock") },
		refuses:  func(ctx context.Context) bool { return refuses(ctx, socket) },
		stopping: newManager(statusURL).mightBeUnavailable,
	}
}

// Read returns the running postmaster. It reads only the lock file, which a postmaster that was killed leaves behind.
func (o *Observer) Read() (Postmaster, error) { return o.read() }

// Stopping reports whether the instance manager is stopping PostgreSQL, keeps it stopped, or started it a few seconds ago. It is
// often not known during the checkpoint of a stop, because the manager does not answer then.
func (o *Observer) Stopping(ctx context.Context) (stopping, known bool) {
	stopping, err := o.stopping(ctx)
	return stopping, err == nil
}

// AwaitStopped returns once PostgreSQL has stopped. Its error is the context's, with the newest of the lock file's if any.
func (o *Observer) AwaitStopped(ctx context.Context) error {
	begun, tried := time.Now(), time.Now()
	var rule stopped
	for {
		running, err := o.read()
		if err == nil {
			try, refused, over := time.Since(tried) >= tryEvery, false, false
			if try {
				refused, tried = o.refuses(ctx), time.Now()
			}
			if rule, over = rule.observe(running, try, refused); over {
				return nil
			}
		}
		interval := idlePoll
		switch waited := time.Since(begun); {
		case waited < busyStop:
			interval = busyPoll
		case waited < calmStop:
			interval = calmPoll
		}
		if !wait(ctx, interval) {
			return fmt.Errorf("wait until PostgreSQL has stopped: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// AwaitServing returns, after a fence was lifted, once a postmaster accepts sessions that will stay: another than before, which ran
// when the fence was set, or the same if the instance manager never obeyed the fence, or does not say for long whether it does. If
// before is not running, PostgreSQL is known to have stopped. Its error is the context's, with the newest of the lock file's if any.
func (o *Observer) AwaitServing(ctx context.Context, before Postmaster) error {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	answers := make(chan answer, 1) // there is one question at a time
	ask := func(after time.Duration) {
		asking.Go(func() {
			if wait(ctx, after) {
				answers <- o.ask(ctx)
			}
		})
	}
	begun, rule := time.Now(), newServing(before)
	var probed probes
	if !rule.gone {
		ask(0)
	}
	var heard *answer // before the lock file is read again, so that it is about the postmaster found there
	for {
		running, err := o.read()
		if err == nil {
			rule = rule.found(running)
		}
		switch stays := false; {
		case err == nil && rule.gone && running.Running:
			var due bool
			if probed, due = probed.next(running, time.Now()); due && o.accepts(ctx) {
				return nil
			}
		case heard != nil && !rule.gone:
			heard.accepts = heard.accepts && err == nil
			if rule, stays = rule.told(*heard); stays {
				return nil
			}
			ask(askEvery)
		}
		heard = nil
		interval := calmPoll
		if time.Since(begun) < busyStart {
			interval = busyPoll
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until PostgreSQL serves: %w", errors.Join(context.Cause(ctx), err))
		case a := <-answers:
			heard = &a
		case <-time.After(interval):
		}
	}
}

// AwaitStartFailed returns once no postmaster has run for [StartsWithin] without a break. Its error is the context's.
func (o *Observer) AwaitStartFailed(ctx context.Context) error {
	rule := absent{since: time.Now()}
	for {
		running, err := o.read()
		refused := err == nil && running.Running && o.refuses(ctx)
		var over bool
		if rule, over = rule.observe(running, err == nil, refused, time.Now()); over {
			return nil
		}
		if !wait(ctx, lookEvery) {
			return fmt.Errorf("wait whether PostgreSQL is started: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// ask asks the instance manager and, unless it is stopping PostgreSQL, whether that accepts sessions.
func (o *Observer) ask(ctx context.Context) answer {
	a := answer{asked: time.Now()}
	a.stopping, a.known = o.Stopping(ctx)
	a.answered = time.Now()
	a.accepts = (!a.known || !a.stopping) && o.accepts(ctx)
	return a
}

func (o *Observer) accepts(ctx context.Context) bool {
	accepts, err := o.server.Accepts(ctx)
	return err == nil && accepts
}

// refuses reports whether nobody listens on a socket. The connection sends nothing, of which PostgreSQL takes no notice.
func refuses(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// wait waits for d, and reports false if the context ended first.
func wait(ctx context.Context, d time.Duration) (ok bool) {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
