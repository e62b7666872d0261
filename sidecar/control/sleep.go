package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

const (
	// backupCheckEvery is how often the Backups are read while one of them is all that keeps the cluster awake.
	backupCheckEvery = 10 * time.Second
	// firstRetry and lastRetry bound the wait after an attempt that did not succeed.
	firstRetry, lastRetry = 2 * time.Second, 30 * time.Second
)

// retry spaces attempts.
type retry struct {
	wait time.Duration
	next time.Time
}

func (r *retry) tooSoon(now time.Time) bool { return now.Before(r.next) }

// later puts the next attempt off, each time twice as long, from first to last.
func (r *retry) later(now time.Time, first, last time.Duration) {
	r.wait = min(max(2*r.wait, first), last)
	r.next = now.Add(r.wait)
}

// backupCheck remembers that a Backup was running.
type backupCheck struct {
	running bool
	until   time.Time
}

// due tells whether it is worth looking whether the Backup still runs.
func (b *backupCheck) due(now time.Time) bool { return b.running && !now.Before(b.until) }

// recheckBackups looks whether the Backup that keeps the cluster awake has ended. While that cannot be read, it has not.
func (l *Loop) recheckBackups(ctx context.Context, now time.Time) {
	if !l.backups.due(now) {
		return
	}
	running, err := l.parts.Kubernetes.RunningBackups(ctx)
	l.backups = backupCheck{running: err != nil || len(running) != 0, until: now.Add(backupCheckEvery)}
}

// changedMind says that an attempt was given up because something speaks against sleep after all.
type changedMind struct{ reason idle.Reason }

func (c changedMind) Error() string { return "not put to sleep: " + string(c.reason) }

// sleep carries the decision out. What it did on the way is undone if it does not come to the switch.
func (l *Loop) sleep(ctx context.Context) {
	err := l.turnOn(ctx)
	now := time.Now()
	if err == nil {
		l.attempt = retry{}
		l.parts.Observer.Attempted(ResultSuccess)
		return
	}
	if ctx.Err() != nil {
		return
	}
	l.attempt.later(now, firstRetry, lastRetry)
	var changed changedMind
	switch {
	case errors.As(err, &changed):
		l.attempt = retry{}
		l.status.Decision.Action, l.status.Decision.Reason = idle.ActionNone, changed.reason
		l.parts.Observer.Attempted(ResultAborted)
		l.parts.Logger.Info("the cluster is not put to sleep after all", "reason", changed.reason)
	case errors.Is(err, kubernetes.ErrConflict):
		l.parts.Observer.Attempted(ResultConflict)
		l.parts.Logger.Info("the Cluster changed while it was being put to sleep; trying again")
	default:
		l.parts.Observer.Attempted(ResultError)
		l.parts.Logger.Error("the cluster could not be put to sleep", "error", err.Error())
	}
	l.resume(ctx, now)
}

// turnOn goes the way from the decision to the switch, in this order: the Backups, the ScheduledBackups, the Backups once
// more since a schedule may have started one, the Cluster as it is now, the sessions as they are now, the switch.
func (l *Loop) turnOn(ctx context.Context) error {
	if err := l.checkBackups(ctx); err != nil {
		return err
	}
	l.resuming.ask()
	suspended, err := l.parts.Kubernetes.SuspendBackups(ctx, time.Now())
	if err != nil {
		return fmt.Errorf("suspend the ScheduledBackups: %w", err)
	}
	if suspended != 0 {
		if err := l.checkBackups(ctx); err != nil {
			return err
		}
	}
	view, err := l.parts.Kubernetes.Get(ctx)
	if err != nil {
		return err
	}
	if view.UID != l.status.View.UID {
		return changedMind{idle.ReasonUnknown}
	}
	l.see(view)
	seen := l.look(ctx)
	now := time.Now()
	seen.Blockers = l.blockers()
	l.decide(seen, now)
	if l.status.Decision.Action != idle.ActionHibernate {
		return changedMind{l.status.Decision.Reason}
	}
	since := l.status.State.IdleSince
	reason := "idle since " + since.UTC().Format(time.RFC3339)
	if err := l.parts.Kubernetes.Hibernate(ctx, view, now, reason); err != nil {
		return err
	}
	l.status.View.Hibernating = true
	l.closeSessions()
	l.parts.Logger.Info("the cluster is put to sleep", "idleSince", since, "suspended", suspended)
	l.parts.Kubernetes.Record(ctx, view, kubernetes.Event{
		Type: kubernetes.EventNormal, Reason: "Hibernated",
		Message: fmt.Sprintf("Put to sleep: idle since %s, for the threshold of %s; suspended ScheduledBackups: %d",
			since.UTC().Format(time.RFC3339), l.status.Policy.Threshold, suspended),
	}, now)
	return nil
}

// checkBackups gives up while a Backup runs.
func (l *Loop) checkBackups(ctx context.Context) error {
	running, err := l.parts.Kubernetes.RunningBackups(ctx)
	if err != nil {
		return err
	}
	l.backups = backupCheck{running: len(running) != 0, until: time.Now().Add(backupCheckEvery)}
	if l.backups.running {
		return changedMind{idle.ReasonBackupRunning}
	}
	return nil
}
