package control

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// sessionEnder terminates the sessions of this instance that do not count once the cluster falls asleep, because a
// shutdown would wait for them. They are taken from the newest sample that was made while sessions could be held; a
// session that began or worked since is not terminated.
type sessionEnder struct {
	Parts
	judged []activity.Terminable
	asleep atomic.Pointer[activity.Rules] // by which endAtStop ends sessions, while our hibernation is on; nil otherwise

	mutex      sync.Mutex
	terminator Terminator // nil if none is open
}

// prepare opens the session that terminates others, if it will be needed, while the server still accepts one.
func (e *sessionEnder) prepare(ctx context.Context) error {
	if e.current() != nil || len(e.judged) == 0 {
		return nil
	}
	terminator, err := e.OpenTerminator(ctx)
	if err != nil {
		return err
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.terminator = terminator
	return nil
}

func (e *sessionEnder) current() Terminator {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.terminator
}

// close closes the session that terminates others, if it is open. It may be called from any goroutine.
func (e *sessionEnder) close() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.terminator != nil {
		e.terminator.Close()
		e.terminator = nil
	}
}

// end terminates the sessions, once, and counts them. It returns how many were to be terminated and how many were.
// After an error any number of them may have been.
func (e *sessionEnder) end(ctx context.Context, of *attempt) (judged, ended int, err error) {
	defer e.close()
	if err := e.prepare(ctx); err != nil {
		return 0, 0, err
	}
	terminator, sessions := e.current(), e.judged
	if e.judged = nil; terminator == nil || len(sessions) == 0 {
		return 0, 0, nil
	}
	ended, err = terminator.Terminate(ctx, sessions)
	// The end of PgBouncer's or a standby's session is never reported as a use.
	if slices.ContainsFunc(sessions, func(s activity.Terminable) bool { return !s.Infrastructure }) {
		if of.ended += ended; err != nil {
			of.unconfirmed += len(sessions)
		}
	}
	return len(sessions), ended, err
}

// endAllWithin bounds endAll: meanwhile the pod is in no Service, and the last sample grows old. If it takes longer,
// the cluster does not doze.
const endAllWithin = 3 * time.Second

// endAll terminates the sessions of this instance that do not count, before a fence. It reports whether all of them
// were terminated, that is, none has become active since the newest sample.
func (e *sessionEnder) endAll(ctx context.Context, of *attempt) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, endAllWithin)
	defer cancel()
	all := len(e.judged)
	_, ended, err := e.end(ctx, of)
	return err == nil && ended == all
}

// maxTurns is how many times in a row the cluster sleeps although a client that was cut comes back within seconds.
const maxTurns = 3

// returning returns an idle session whose client would probably reconnect within seconds, after clients have done so
// maxTurns times in a row; zero if there is none. Such clients listen, or belong to a pool with a minimum size. The
// client that woke the cluster is preferred.
func returning(wake contract.LastWake, withdrawn int, sessions []activity.Terminable) (found activity.Terminable) {
	if wake.Returns+withdrawn < maxTurns {
		return found
	}
	for _, session := range sessions {
		if session.Idle && !session.Infrastructure && (found == activity.Terminable{} || session.Client.Unmap().String() == wake.By) {
			found = session
		}
	}
	return found
}

// endAtSleep closes our own sessions, and terminates those of this instance that do not count. If that fails, the
// shutdown only takes longer.
func (e *sessionEnder) endAtSleep(ctx context.Context, of *attempt) {
	e.Monitor.CloseSessions()
	if e.Monitor.Drained() {
		return
	}
	judged, ended, err := e.end(ctx, of)
	switch {
	case err != nil:
		e.Logger.Warn("cannot terminate all sessions that do not count; the shutdown waits for them",
			"sessions", judged, "error", err.Error())
	case ended != 0:
		e.Logger.Info("sessions that do not count are ended", "ended", ended)
	}
}

// endAtStop ends the sessions that never count once more, if the pod is deleted for our hibernation: their clients may
// have come back, and PostgreSQL would wait for them. It may be called from any goroutine.
func (e *sessionEnder) endAtStop(ctx context.Context) {
	rules := e.asleep.Load()
	if rules == nil {
		return
	}
	if ended, err := e.Instance.EndAtStop(ctx, *rules); err != nil {
		e.Logger.Warn("cannot end the sessions that do not count when PostgreSQL stops; the shutdown waits for them",
			"ended", ended, "error", err.Error())
	} else if ended != 0 {
		e.Logger.Info("sessions that do not count are ended while PostgreSQL stops", "ended", ended)
	}
}

// Drain closes all database sessions at once and keeps them closed, and ends those of clients that a shutdown would
// wait for. It may be called from any goroutine.
func (l *Loop) Drain(ctx context.Context) {
	l.parts.Monitor.Drain()
	l.sessions.close()
	l.pod.ends.end(sleep.Prepare)
	l.sessions.endAtStop(ctx)
}
