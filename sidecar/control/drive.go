package control

import (
	"context"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
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
	l.runTimers()
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
		l.report(ctx, r)
	}
	if len(out.Reports) != 0 {
		l.parts.Observer.Publish(l.status)
	}
	if samples { // it blocks the loop, while the other actions are running
		l.lastSample(ctx)
	}
}

// runTimers starts and stops timers as the machine says.
func (l *Loop) runTimers() {
	running := l.machine.Timers()
	for timer := range l.timers {
		if _, ok := running[timer]; !ok {
			delete(l.timers, timer)
		}
	}
	for timer, takes := range running {
		if _, ok := l.timers[timer]; !ok {
			l.timers[timer] = time.Now().Add(takes)
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

// sleepView returns what the machine needs to know about the newest state of the Cluster.
func (l *Loop) sleepView() sleep.View {
	v := l.status.View
	marked := !v.DozingSince.IsZero() || v.Stopped != "" || v.RestartFailed != ""
	return sleep.View{
		Primary: v.CurrentPrimary == l.parts.Pod && v.TargetPrimary == l.parts.Pod, PrimarySince: v.PrimarySince,
		Healthy: v.Healthy, NotReady: v.Hibernation != "" || !slices.Contains(v.Ready, l.parts.Pod), Manual: l.status.Policy.Manual,
		HibernationOn: v.Hibernating, OwnsHibernation: v.Ours, HibernationBegun: v.Hibernating && !v.Untouched(),
		Announced: v.Annotations[contract.AnnotationAnnounced], Acknowledged: v.Annotations[contract.AnnotationGatewayReady],
		Holding: v.Annotations[contract.AnnotationGatewayHolding],
		Fenced:  v.Dozing, Stopped: v.Stopped == l.parts.PodUID,
		DozeEnding: !v.Dozing && (marked && !v.ForeignMarks || l.doze.restartPending), ForeignMarks: v.ForeignMarks,
		MayDoze: l.mayDoze(),
	}
}

// postpone sets the reason why an attempt that is due is not made yet, or the result of the last one while another is made.
// Whether the other instances are idle is part of an attempt.
func (l *Loop) postpone() {
	attempting := l.machine.Phase().Attempting()
	if l.status.Decision.Action == idle.ActionNone || !l.machine.Waits() && !attempting {
		return
	}
	if reason := l.aborted; reason != "" {
		l.status.Decision.Reason, l.status.Decision.Blockers = reason, []idle.Reason{reason}
	} else if attempting {
		l.status.Decision.Reason, l.status.Decision.Blockers = idle.ReasonIdle, nil
	}
	l.status.Decision.Action = idle.ActionNone
}
