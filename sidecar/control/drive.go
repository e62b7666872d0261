package control

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// attempt is what the loop keeps of the present attempt to sleep.
type attempt struct {
	began     time.Time
	siblings  []siblings.Answer // to the newest request for samples
	answered  time.Time         // when they came
	suspended int               // schedules
	ended     int               // sessions
}

// advance gives the machine an event, carries out what it asks for, and runs its timers.
func (l *Loop) advance(ctx context.Context, e sleep.Event) {
	before := l.machine.Phase()
	machine, out := sleep.Step(l.machine, e)
	l.machine = machine
	if phase := machine.Phase(); phase != before {
		l.parts.Logger.Debug("the phase of sleep has changed", "phase", phase.String(), "before", before.String())
	}
	if phase := machine.Phase(); phase <= sleep.Confirming || phase == sleep.Retracting {
		l.ender.close() // it is opened for the switch alone
	}
	l.runTimers()
	samples := false
	for _, a := range out.Actions {
		samples = samples || a == sleep.Sample
		if a != sleep.Sample && !l.beginAction(ctx, a) {
			l.carryOut(ctx, a)
		}
	}
	for _, r := range out.Reports {
		l.report(ctx, r)
	}
	if len(out.Reports) != 0 {
		l.parts.Observer.Publish(l.status)
	}
	if samples { // it holds the loop up, while what else was asked for is under way
		l.lastSample(ctx)
	}
}

// runTimers begins and stops timers as the machine says.
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

// expire gives the machine a timer that has run out, and reports whether there was one.
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

// sleepView is what the machine needs to know of the newest state of the Cluster.
func (l *Loop) sleepView() sleep.View {
	v := l.status.View
	return sleep.View{
		Primary: v.CurrentPrimary == l.parts.Pod && v.TargetPrimary == l.parts.Pod,
		Healthy: v.Healthy, Manual: l.status.Policy.Manual,
		On: v.Hibernating, Ours: v.Ours, Begun: v.Hibernating && !v.Untouched(),
		Announced: v.Annotations[contract.AnnotationAnnounced], Acknowledged: v.Annotations[contract.AnnotationGatewayReady],
	}
}

// postpone says why an attempt that would be due is not made yet, or what the last one came to while another is made. Whether
// the other instances are idle is a part of an attempt.
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
