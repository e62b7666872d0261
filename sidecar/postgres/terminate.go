package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// terminationTimeout bounds the statement that ends sessions, and the wait for its answer. If it expires, the remaining
// sessions delay the shutdown by three minutes; a busy node ended 32 of 50 within three seconds. The sidecar does
// nothing else meanwhile, so together with sampleTimeout for the connect it is shorter than the time in which the
// operator must begin the hibernation.
const terminationTimeout = 10 * time.Second

// Terminator ends sessions of others. It is opened before hibernation is turned on, because no session can be opened
// once the shutdown has begun.
type Terminator struct {
	held   holder
	within time.Duration // for an answer
}

// Terminator opens a session as the superuser: no other role may end every session.
func (s *Server) Terminator(ctx context.Context) (*Terminator, error) {
	ctx, cancel := context.WithTimeout(ctx, s.answerWithin)
	defer cancel()
	opened, err := s.connectAs(ctx, roleFallback, maintenanceDatabase, terminationTimeout)
	if err != nil {
		return nil, err
	}
	t := &Terminator{within: max(s.answerWithin, terminationTimeout)}
	if err := t.held.keep(ctx, opened); err != nil {
		return nil, fmt.Errorf("keep the session: %w", err)
	}
	return t, nil
}

// Terminate ends those of the sessions whose state has not changed since they were judged, and returns how many.
func (t *Terminator) Terminate(ctx context.Context, sessions []activity.Terminable) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, t.within)
	defer cancel()
	ctx, done := t.held.use(ctx)
	defer done()
	session := t.held.current()
	if session == nil {
		return 0, fmt.Errorf("end the sessions that do not count: %w", errClosed)
	}
	return terminate(ctx, session.conn, sessions)
}

func terminate(ctx context.Context, conn *pgx.Conn, sessions []activity.Terminable) (int, error) {
	var pids, started, changed []int64
	var resting []bool
	for _, d := range sessions {
		pids, started = append(pids, d.PID), append(started, d.Started)
		resting, changed = append(resting, d.Idle), append(changed, d.Changed)
	}
	tag, err := conn.Exec(ctx, terminateStatement, pids, started, resting, changed)
	if err != nil {
		return 0, fmt.Errorf("end the sessions that do not count: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// Close closes the session at once.
func (t *Terminator) Close() { t.held.close() }

const (
	// stopWithin bounds the wait of EndAtStop: two seconds of PostgreSQL's preStop hook, and what a busy node adds.
	stopWithin = 4 * time.Second
	// stopPoll is the interval between two of its looks.
	stopPoll = 100 * time.Millisecond
)

// EndAtStop waits until PostgreSQL has begun to stop and accepts no new sessions, and ends the sessions that never
// count. It samples twice, because a client may have been logging in. It leaves idle sessions of clients alone, because
// they may have been used since the sample. PostgreSQL also waits for the session that EndAtStop uses, so that one is
// closed at once when an error occurs or the context ends.
func (s *Server) EndAtStop(ctx context.Context, rules activity.Rules) (ended int, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(s.answerWithin, stopWithin))
	defer cancel()
	opened, err := s.connectAs(ctx, roleFallback, maintenanceDatabase, statementTimeout)
	if err != nil {
		return 0, err
	}
	defer opened.closeNow()
	for looks := 0; ; {
		var stopping bool
		if err := opened.conn.QueryRow(ctx, stoppingStatement).Scan(&stopping); err != nil {
			return ended, fmt.Errorf("ask whether PostgreSQL has begun to stop: %w", err)
		}
		if stopping {
			sample, err := read(ctx, opened.conn, rules, func(activity.Session) {})
			if err != nil {
				return ended, err
			}
			count, err := terminate(ctx, opened.conn, slices.DeleteFunc(sample.Tally.Terminable(), func(d activity.Terminable) bool { return d.Idle && !d.Infrastructure }))
			if ended += count; err != nil || looks == 1 {
				return ended, err
			}
			looks++
		}
		if !process.Pause(ctx, stopPoll) {
			return ended, fmt.Errorf("wait until PostgreSQL stops: %w", context.Cause(ctx))
		}
	}
}
