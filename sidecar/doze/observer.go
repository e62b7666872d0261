package doze

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

	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

const (
	// fastPoll is the first interval between two reads of the lock file. A restart takes 50 to 100 milliseconds.
	fastPoll = 20 * time.Millisecond
	// normalPoll is the interval after that, and slowPoll the interval while a stop takes long.
	normalPoll, slowPoll = 100 * time.Millisecond, time.Second
	// fastStopPolls and normalStopPolls say for how long after the begin of a stop the first two intervals apply,
	// fastStartPolls for how long after the begin of a start the first does.
	fastStopPolls, normalStopPolls, fastStartPolls = 2 * time.Second, 10 * time.Second, 10 * time.Second
	// dialInterval is the interval between two connections to the socket while its lock file stays.
	dialInterval = time.Second
	// askInterval is the interval between two questions to the instance manager, which queries PostgreSQL for each.
	askInterval = time.Second
	// absentPoll is the interval between two checks whether a postmaster has been started.
	absentPoll = time.Second
	// dialTimeout bounds a connection to the socket, whose queue may be full.
	dialTimeout = 500 * time.Millisecond
)

// Observer observes one instance. Its methods may be called from any goroutine.
type Observer struct {
	accepts  func(ctx context.Context) (bool, error)
	read     func() (Postmaster, error)
	refuses  func(ctx context.Context) bool
	stopping func(ctx context.Context) (bool, error)
}

// NewObserver returns an observer of the instance in this pod. PostgreSQL's Unix socket for the port is in
// socketDirectory; accepts asks it whether it accepts sessions.
func NewObserver(socketDirectory string, port uint16, accepts func(ctx context.Context) (bool, error)) *Observer {
	socket := filepath.Join(socketDirectory, ".s.PGSQL."+strconv.Itoa(int(port)))
	return &Observer{
		accepts:  accepts,
		read:     func() (Postmaster, error) { return readLock(socket + ".lock") },
		refuses:  func(ctx context.Context) bool { return refuses(ctx, socket) },
		stopping: newManager(statusURL).mightBeUnavailable,
	}
}

// Read returns the running postmaster. It reads only the lock file, which a postmaster that was killed leaves behind.
func (o *Observer) Read() (Postmaster, error) { return o.read() }

// Stopping reports whether the instance manager is stopping PostgreSQL, keeps it stopped, or started it a few seconds
// ago. It is often not known during the checkpoint of a stop, because the manager does not answer then.
func (o *Observer) Stopping(ctx context.Context) (stopping, known bool) {
	stopping, err := o.stopping(ctx)
	return stopping, err == nil
}

// AwaitStopped returns once PostgreSQL has stopped. Its error is the context's, joined with the newest error of reading
// the lock file, if any.
func (o *Observer) AwaitStopped(ctx context.Context) error {
	begun, tried := time.Now(), time.Now()
	var rule stoppedRule
	for {
		running, err := o.read()
		if err == nil {
			try, refused, over := time.Since(tried) >= dialInterval, false, false
			if try {
				refused, tried = o.refuses(ctx), time.Now()
			}
			if rule, over = rule.observe(running, try, refused); over {
				return nil
			}
		}
		interval := slowPoll
		switch waited := time.Since(begun); {
		case waited < fastStopPolls:
			interval = fastPoll
		case waited < normalStopPolls:
			interval = normalPoll
		}
		if !process.Pause(ctx, interval) {
			return fmt.Errorf("wait until PostgreSQL has stopped: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// AwaitServing returns, after a fence was lifted, once a postmaster accepts sessions that no fence will stop any more.
// before is the postmaster that ran when the fence was set; if it is not running, PostgreSQL is known to have stopped.
// The serving postmaster may be the same if the instance manager never obeyed the fence, or has not answered for long.
// The error is the context's, joined with the newest error of reading the lock file, if any.
func (o *Observer) AwaitServing(ctx context.Context, before Postmaster) error {
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	answers := make(chan managerAnswer, 1) // there is one question at a time
	ask := func(after time.Duration) {
		asking.Go(func() {
			if process.Pause(ctx, after) {
				answers <- o.ask(ctx)
			}
		})
	}
	begun, rule := time.Now(), newServingRule(before)
	var probed probeSchedule
	if !rule.gone {
		ask(0)
	}
	var heard *managerAnswer // came before the lock file is read again, so it is about the postmaster that is found then
	for {
		running, err := o.read()
		if err == nil {
			rule = rule.observePostmaster(running)
		}
		switch stays := false; {
		case err == nil && rule.gone && running.Running:
			var due bool
			if probed, due = probed.next(running, time.Now()); due && o.serves(ctx) {
				return nil
			}
		case heard != nil && !rule.gone:
			heard.accepts = heard.accepts && err == nil
			if rule, stays = rule.observeManager(*heard); stays {
				return nil
			}
			ask(askInterval)
		}
		heard = nil
		interval := normalPoll
		if time.Since(begun) < fastStartPolls {
			interval = fastPoll
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

// AwaitStartFailed returns once no postmaster has run for [StartTimeout] without a break. Its error is the context's,
// joined with the newest error of reading the lock file, if any.
func (o *Observer) AwaitStartFailed(ctx context.Context) error {
	rule := startFailedRule{since: time.Now()}
	for {
		running, err := o.read()
		refused := err == nil && running.Running && o.refuses(ctx)
		var over bool
		if rule, over = rule.observe(running, err == nil, refused, time.Now()); over {
			return nil
		}
		if !process.Pause(ctx, absentPoll) {
			return fmt.Errorf("wait whether PostgreSQL is started: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// ask asks the instance manager whether it is stopping PostgreSQL and, unless it is, PostgreSQL whether it accepts
// sessions.
func (o *Observer) ask(ctx context.Context) managerAnswer {
	a := managerAnswer{asked: time.Now()}
	a.stopping, a.known = o.Stopping(ctx)
	a.answered = time.Now()
	a.accepts = (!a.known || !a.stopping) && o.serves(ctx)
	return a
}

func (o *Observer) serves(ctx context.Context) bool {
	accepts, err := o.accepts(ctx)
	return err == nil && accepts
}

// refuses reports whether no process listens on a socket. The connection sends nothing, so PostgreSQL logs nothing.
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
