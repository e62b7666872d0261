package control

import (
	"context"
	"maps"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// attempt is the state of the current attempt to sleep.
type attempt struct {
	began     time.Time
	siblings  []siblingAnswer     // answers to the newest request for samples
	answered  time.Time           // when they arrived
	suspended int                 // schedules
	judged    idle.State          // at the hibernation patch or the fence: later the end of a session may have changed it
	ignored   activity.Terminable // likewise, the ignored session of the client that woke the cluster in vain; zero if there is none
	cause     string              // why it hibernates
	ended     int                 // sessions
	// unconfirmed sessions were to be ended too, but PostgreSQL did not say how many it has ended.
	unconfirmed int
}

// advance passes an event to the machine, carries out the requested actions, and runs its timers.
func (l *Loop) advance(ctx context.Context, e sleep.Event) {
	before := l.machine.Phase()
	machine, out := sleep.Step(l.machine, e)
	l.machine = machine
	if phase := machine.Phase(); phase != before {
		l.parts.Logger.Debug("the phase of sleep has changed", "phase", phase.String(), "before", before.String())
	}
	if phase := machine.Phase(); phase <= sleep.Confirming || phase == sleep.Retracting {
		l.ender.close() // it is only needed for the hibernation patch
	}
	if machine.Phase() != sleep.Preparing || machine.Abandoned() {
		l.preparation.cancel()
	}
	if fenced := l.fenced(); fenced != l.doze.fenced {
		l.fenceChanged(fenced)
	}
	l.timers.run(l.machine.Timers())
	l.watchRestart(ctx)
	samples, ends := false, false
	for _, a := range out.Actions {
		samples, ends = samples || a == sleep.Sample, ends || a == sleep.EndSessions
		if a != sleep.Sample && a != sleep.EndSessions && !l.beginAction(ctx, a) {
			l.carryOut(a)
		}
	}
	if ends { // it blocks the loop, and a withdrawal must not wait for it: the operator may begin meanwhile
		l.endSessions(ctx)
	}
	for _, r := range out.Reports {
		l.reporter.report(ctx, &l.status, &l.attempt, r)
	}
	if len(out.Reports) != 0 {
		l.parts.Observer.Publish(l.status)
	}
	if samples { // it blocks the loop, while the other actions are running
		l.lastSample(ctx)
	}
}

// timers has when each of the machine's timers expires.
type timers map[sleep.Timer]time.Time

// run starts and stops timers as the machine says.
func (t timers) run(running map[sleep.Timer]time.Duration) {
	maps.DeleteFunc(t, func(timer sleep.Timer, _ time.Time) bool { _, ok := running[timer]; return !ok })
	for timer, takes := range running {
		if _, ok := t[timer]; !ok {
			t[timer] = time.Now().Add(takes)
		}
	}
}

// expire passes an expired timer to the machine, and reports whether there was one.
func (l *Loop) expire(ctx context.Context) (ok bool) {
	now := time.Now()
	for timer := range sleep.Timers() {
		if at, ok := l.timers[timer]; ok && !now.Before(at) {
			delete(l.timers, timer)
			l.advance(ctx, sleep.Timeout{Timer: timer})
			return true
		}
	}
	return false
}

// postpone sets the reason why an attempt that is due is not made yet, or the result of the last one while another is made.
// Whether the other instances are idle is part of an attempt.
func (l *Loop) postpone() {
	attempting := l.machine.Phase().Attempting()
	if l.status.Decision.Action == idle.ActionNone || !l.machine.Waits() && !attempting {
		return
	}
	if reason := l.reporter.aborted; reason != "" {
		l.status.Decision.Reason, l.status.Decision.Blockers = reason, []idle.Reason{reason}
	} else if attempting {
		l.status.Decision.Reason, l.status.Decision.Blockers = idle.ReasonIdle, nil
	}
	l.status.Decision.Action = idle.ActionNone
}
