package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sql"
)

// terminationTimeout bounds the statement that ends sessions, and the wait for its answer. If it is broken off, the sessions that are
// left delay the shutdown by three minutes; on a busy node 32 of 50 were ended within three seconds. With sampleTimeout for the connect
// it is shorter than the operator is given to begin the hibernation, since the sidecar does nothing else meanwhile.
const terminationTimeout = 10 * time.Second

// Terminator ends sessions of others. It is opened before hibernation is turned on, because no session can be opened once the
// shutdown has begun.
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
	var pids, started, changed []int64
	var resting []bool
	for _, d := range sessions {
		pids, started = append(pids, d.PID), append(started, d.Started)
		resting, changed = append(resting, d.Idle), append(changed, d.Changed)
	}
	tag, err := session.conn.Exec(ctx, sql.Terminate, pids, started, resting, changed)
	if err != nil {
		return 0, fmt.Errorf("end the sessions that do not count: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

// Close closes the session at once.
func (t *Terminator) Close() { t.held.close() }
