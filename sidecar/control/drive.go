package control

import (
	"context"
	"maps"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
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
		l.sessions.close() // it is needed only from the last sample on
	}
	if machine.Phase() != sleep.Preparing || machine.Abandoned() {
		l.pod.ends.end(sleep.Prepare)
	}
	switch fenced := machine.Phase().Fenced() || l.status.View.Dozing; {
	case fenced && !l.doze.fenced:
		l.parts.Monitor.CloseSessions()
		l.doze.fenced, l.doze.specification, l.doze.retry = true, l.parts.Monitor.SavedSpecification(), time.Time{}
		if l.pod.postmaster == (doze.Postmaster{}) && l.status.View.Stopped != l.parts.PodUID { // after a restart of this process
			l.pod.notePostmaster()
		}
		l.status.Known, l.status.InUse = false, false
		l.status.Decision = idle.Decision{Reason: idle.ReasonDozing, Blockers: []idle.Reason{idle.ReasonDozing}}
		l.parts.Observer.Publish(l.status)
	case !fenced && l.doze.fenced:
		l.doze.fenced, l.status.State = false, idle.State{} // after a wake the idle clock starts anew
		l.parts.Monitor.SampleSoon()
	}
	l.timers.run(l.machine.Timers())
	l.run(ctx, l.cluster.watchRestart(ctx, machine.Phase() == sleep.Restarting, l.status.View))
	samples, ends := false, false
	for _, a := range out.Actions {
		switch a {
		case sleep.Sample:
			samples = true
		case sleep.EndSessions:
			ends = true
		default:
			l.start(ctx, a)
		}
	}
	if ends { // it blocks the loop, and a withdrawal must not wait for it: the operator may begin meanwhile
		l.sessions.endAtSleep(ctx, &l.attempt)
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

// expired returns a timer that has expired, which then no longer runs.
func (t timers) expired(now time.Time) (timer sleep.Timer, ok bool) {
	for timer := range sleep.Timers() {
		if at, ok := t[timer]; ok && !now.Before(at) {
			delete(t, timer)
			return timer, true
		}
	}
	return 0, false
}
