package control

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// sample makes the monitor sample the instance.
func (l *Loop) sample(ctx context.Context) idle.Observation {
	seen, change := l.parts.Monitor.Sample(ctx)
	l.changed(ctx, change)
	if l.status.Known {
		l.sessions.judged = l.parts.Monitor.Terminable()
	}
	seen.Requested = later(seen.Requested, l.status.Policy.SleepRequested)
	seen.Siblings, seen.Woken = l.status.siblingCount(), l.status.wokenAt()
	return seen
}

// handle passes an event to the monitor, and records any use at once, also for a process that is started after this
// one.
func (l *Loop) handle(ctx context.Context, e monitor.Event) {
	change := l.parts.Monitor.Handle(e)
	l.changed(ctx, change)
	if change.KeepAwake != nil {
		l.run(ctx, l.cluster.persistKeepAwake(l.status.View))
	}
	if !change.Used.IsZero() {
		l.used(ctx, change)
	}
	l.parts.Observer.Publish(l.status)
}

// used records that the instance was used since the newest sample.
func (l *Loop) used(ctx context.Context, change monitor.Change) {
	state := &l.status.State
	switch {
	case change.InUse:
		state.IdleSince = time.Time{}
	case !state.IdleSince.IsZero():
		state.IdleSince = later(state.IdleSince, change.Used)
	}
	state.LastActivity = later(state.LastActivity, change.Used)
	if woken := later(state.Unused, state.Undecided); !woken.IsZero() {
		state.Unused, state.Undecided = time.Time{}, time.Time{}
		l.status.logUse(idle.Observation{Woken: woken, Reported: true}, l.parts.Logger)
	}
	l.parts.Monitor.Checkpoint(*state)
	l.advance(ctx, sleep.Observed{Blocker: idle.ReasonActive, InUse: !l.attempt.mayHaveEnded(l.machine), IdleRestarted: true})
}

// mayHaveEnded reports whether an ended session that the kernel reports may be one that we have terminated. The samples
// that are taken while hibernation is on still find a client that has a session.
func (a *attempt) mayHaveEnded(machine sleep.Machine) bool {
	if a.ended+a.unconfirmed == 0 {
		return false
	}
	switch machine.Phase() {
	case sleep.Hibernating, sleep.HibernationOn: // in the first, the watch was faster than the answer to the patch
		return true
	default:
		return machine.ToDoze()
	}
}

// changed handles a change that the monitor reports.
func (l *Loop) changed(ctx context.Context, change monitor.Change) {
	l.status.Status = l.parts.Monitor.Status()
	l.reporter.listenFailed(ctx, l.status.View, change.ListenFailure, l.status.ListenerConnected)
	if change.KeepAwake != nil {
		l.cluster.keepAwake.take(*change.KeepAwake, l.status.Policy, l.status.View, time.Now())
		l.parse(time.Now())
	}
	switch restored := change.Restored; {
	case restored == nil:
	case restored.IdleSince.IsZero():
		l.status.State.LastActivity = restored.LastActivity
	default:
		l.status.State = *restored
	}
}
