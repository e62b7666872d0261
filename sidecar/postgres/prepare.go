package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// preparation bounds the preparation of a fast shutdown.
type preparation struct {
	// answer is how long the connect may take, and each answer.
	answer time.Duration
	// checkpoint is how long the checkpoint may take.
	checkpoint time.Duration
	// archived is how long the archiver may take until everything that was written is archived.
	archived time.Duration
	// slow is how long the archiving of one WAL file may take, because the shutdown writes one more and waits for it.
	slow time.Duration
}

// preparing are the bounds of [Server.Prepare].
var preparing = preparation{answer: sampleTimeout, checkpoint: 20 * time.Second, archived: 10 * time.Second, slow: 2 * time.Second}

// archivePoll is the interval between two questions whether the archiver has caught up.
const archivePoll = 100 * time.Millisecond

// Prepare leaves little to do for a fast shutdown that follows soon: it runs a checkpoint, completes the WAL file in
// use, and waits until the archiver has archived it. It returns why the shutdown would nevertheless take long, or "" if
// it has only few buffers to write and one WAL file to archive. The checkpoint may take 20 seconds, and the archiver
// 10.
//
// Its session is the superuser's and is closed at once when the context ends, so that it delays no other shutdown.
func (s *Server) Prepare(ctx context.Context) (idle.Reason, error) {
	against, err := s.prepare(ctx, preparing)
	if err != nil && ctx.Err() != nil { // a session that was closed fails with whatever it was doing
		err = fmt.Errorf("prepare a shutdown: %w", errors.Join(context.Cause(ctx), err))
	}
	return against, err
}

func (s *Server) prepare(ctx context.Context, limits preparation) (idle.Reason, error) {
	limited, cancel := context.WithTimeout(ctx, limits.answer)
	defer cancel()
	opened, err := s.connectAs(limited, roleFallback, maintenanceDatabase, statementTimeout)
	if err != nil {
		return "", err
	}
	defer opened.closeNow()
	stop := context.AfterFunc(ctx, opened.closeNow)
	defer stop()
	if err := checkpoint(ctx, opened.conn, limits); err != nil {
		return "", err
	}
	completed, err := switchWAL(ctx, opened.conn, limits)
	if err != nil || completed == "" {
		return "", err
	}
	return awaitArchived(ctx, opened.conn, completed, limits)
}

// Archiver returns [idle.ReasonArchiverBehind] if WAL has waited for the archiver for longer than a preparation waits,
// or "". A shutdown would wait for it too. Unlike Prepare it has PostgreSQL write nothing.
func (s *Server) Archiver(ctx context.Context) (idle.Reason, error) {
	ctx, cancel := context.WithTimeout(ctx, preparing.answer)
	defer cancel()
	opened, err := s.connect(ctx, maintenanceDatabase)
	if err != nil {
		return "", err
	}
	defer opened.closeNow()
	var late bool
	if err := opened.conn.QueryRow(ctx, archiveLateStatement, preparing.archived.Seconds()).Scan(&late); err != nil {
		return "", fmt.Errorf("ask whether the archiver is late: %w", err)
	}
	if late {
		return idle.ReasonArchiverBehind, nil
	}
	return "", nil
}

// checkpoint runs a checkpoint. One that takes too long continues in the server.
func checkpoint(ctx context.Context, conn *pgx.Conn, limits preparation) error {
	// The server's own limit applies unless it hangs.
	ctx, cancel := context.WithTimeout(ctx, limits.checkpoint+limits.answer)
	defer cancel()
	for _, statement := range []string{
		fmt.Sprintf("SET statement_timeout = %d", limits.checkpoint.Milliseconds()), "CHECKPOINT", "RESET statement_timeout",
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("run a checkpoint: %w", err)
		}
	}
	return nil
}

// switchWAL completes the WAL file in use and returns the name of the newest completed file, or "" if nothing is
// archived.
func switchWAL(ctx context.Context, conn *pgx.Conn, limits preparation) (completed string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limits.answer)
	defer cancel()
	if err := conn.QueryRow(ctx, archiveSwitchStatement).Scan(&completed); err != nil {
		return "", fmt.Errorf("complete the WAL file in use: %w", err)
	}
	return completed, nil
}

// awaitArchived waits until the archiver has archived a completed WAL file and every one before it.
func awaitArchived(ctx context.Context, conn *pgx.Conn, completed string, limits preparation) (idle.Reason, error) {
	now := time.Now()
	archiving := archiving{limits: limits, completed: now, begun: now}
	ticker := time.NewTicker(archivePoll)
	defer ticker.Stop()
	for {
		queue, err := readQueue(ctx, conn, completed, limits)
		if err != nil {
			return "", err
		}
		if reason, over := archiving.observe(queue, time.Now()); over {
			return reason, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the archiver: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// archiveQueue is what waits for the archiver: total files up to and including one WAL file, and those before it.
type archiveQueue struct{ total, before int64 }

func readQueue(
	ctx context.Context, conn *pgx.Conn, completed string, limits preparation,
) (queue archiveQueue, err error) {
	ctx, cancel := context.WithTimeout(ctx, limits.answer)
	defer cancel()
	if err := conn.QueryRow(ctx, archiveQueueStatement, completed).Scan(&queue.total, &queue.before); err != nil {
		return archiveQueue{}, fmt.Errorf("read the archiver's queue: %w", err)
	}
	return queue, nil
}

// archiving follows how a WAL file is archived.
type archiving struct {
	limits    preparation
	completed time.Time // when the file was completed
	begun     time.Time // when the archiver took it at the earliest
}

// observe returns, once the waiting is over, what speaks against a shutdown, or "".
func (a *archiving) observe(queue archiveQueue, now time.Time) (against idle.Reason, over bool) {
	switch {
	case queue.total == 0 && now.Sub(a.begun) > a.limits.slow:
		return idle.ReasonArchiverSlow, true
	case queue.total == 0:
		return "", true
	case now.Sub(a.completed) >= a.limits.archived:
		return idle.ReasonArchiverBehind, true
	case queue.before != 0:
		a.begun = now
	}
	return "", false
}
