package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/fence"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// doze is what is known of the current doze, or of an attempt at one.
type doze struct {
	// fenced is what fenced has last returned.
	fenced bool
	// before is the postmaster that may have been fenced; the zero value if it has stopped, or if none was.
	before fence.Postmaster
	// stopWaiting ends the wait for PostgreSQL; nil without one.
	stopWaiting context.CancelFunc
	// stopWatching ends the watch over PostgreSQL's start; nil without one.
	stopWatching context.CancelFunc
	// inherited says that a doze ended before this process was started, and that PostgreSQL has not been started since.
	inherited bool
	// conflicted is the resourceVersion with which it could not be recorded that PostgreSQL was not started; empty without a conflict.
	conflicted string
	// stopWithdrawing ends the withdrawal of the readiness; nil without one.
	stopWithdrawing context.CancelFunc
	// generation is that of the Cluster's specification when it was fenced, operator names the operator and its plugins then, and
	// retry is when hibernation is tried again.
	generation int64
	operator   string
	retry      time.Time
	// sized reports whether the pod was resized, and small whether for the doze.
	sized, small bool
}

func (d *doze) cancel() {
	if d.stopWaiting != nil {
		d.stopWaiting()
	}
}

// beginDoze starts an action of a doze, and reports whether the action is one.
func (l *Loop) beginDoze(ctx context.Context, a sleep.Action) (ok bool) {
	client, view, instance := l.parts.Kubernetes, l.status.View, l.parts.Instance
	switch a {
	case sleep.Prepare:
		if l.parts.Monitor.Drained() {
			l.completed(ctx, sleep.Completed{Action: a}, errDrained)
			return true
		}
		preparing := l.preparation.begin(ctx)
		l.begin(ctx, func(context.Context) func() {
			reason, err := instance.Prepare(preparing)
			return func() { l.completed(ctx, sleep.Completed{Action: a, Blocker: reason}, err) }
		})
	case sleep.WithdrawReadiness:
		l.withdrawReadiness(ctx)
	case sleep.Fence:
		l.notePostmaster()
		l.patch(ctx, sleep.Completed{Action: a}, func(ctx context.Context) (kubernetes.View, error) {
			return client.Fence(ctx, view, time.Now())
		})
	case sleep.LiftFence:
		l.patch(ctx, sleep.Completed{Action: a}, func(ctx context.Context) (kubernetes.View, error) { return client.LiftFence(ctx, view) })
	case sleep.RecordStop:
		l.patch(ctx, sleep.Completed{Action: a}, func(ctx context.Context) (kubernetes.View, error) {
			return client.Annotate(ctx, view, contract.AnnotationPostgresStopped, &l.parts.PodUID)
		})
	case sleep.AwaitStop:
		l.await(ctx, a, instance.AwaitStopped)
	case sleep.AwaitServing:
		before := l.doze.before
		l.await(ctx, a, func(ctx context.Context) error { return instance.AwaitServing(ctx, before) })
	case sleep.AskManager:
		l.begin(ctx, func(ctx context.Context) func() {
			stopping, known := instance.Stopping(ctx)
			return func() { l.advance(ctx, sleep.Completed{Action: a, Ignored: known && !stopping}) }
		})
	default:
		return false
	}
	return true
}

// preparation is the preparation of PostgreSQL, which holds a session that could delay a shutdown.
type preparation struct {
	mutex sync.Mutex
	end   context.CancelFunc
}

// begin returns the context of a preparation.
func (p *preparation) begin(ctx context.Context) context.Context {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	ctx, p.end = context.WithCancel(ctx)
	return ctx
}

// cancel ends the preparation, if there is one. It may be called from any goroutine.
func (p *preparation) cancel() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.end != nil {
		p.end()
		p.end = nil
	}
}

// withdrawRetry is the wait before a failed attempt to withdraw the readiness is repeated.
const withdrawRetry = time.Second

// withdrawReadiness answers with the result of the first attempt, and repeats it until one succeeds or the readiness is restored.
func (l *Loop) withdrawReadiness(ctx context.Context) {
	if l.parts.Readiness == nil { // somebody has set our fence on a pod that was made without the probe
		l.completed(ctx, sleep.Completed{Action: sleep.WithdrawReadiness}, errNoProbe)
		return
	}
	withdrawing, cancel := context.WithCancel(ctx)
	l.doze.stopWithdrawing = cancel
	l.begin(ctx, func(context.Context) func() {
		err := l.parts.Readiness.Withdraw(withdrawing)
		if err != nil {
			l.running.Go(func() {
				for pause(withdrawing, withdrawRetry) && l.parts.Readiness.Withdraw(withdrawing) != nil {
				}
			})
		}
		return func() { l.completed(ctx, sleep.Completed{Action: sleep.WithdrawReadiness}, err) }
	})
}

// errDrained means that no session may be held any more.
var errDrained = errors.New("the sidecar is drained, since the pod ends")

// errNoProbe means that the pod has no readiness probe of ours.
var errNoProbe = errors.New("the pod was made without the readiness probe of a doze")

// restoreReadiness makes the pod ready again.
func (l *Loop) restoreReadiness() {
	if l.doze.stopWithdrawing != nil {
		l.doze.stopWithdrawing()
		l.doze.stopWithdrawing = nil
	}
	if l.parts.Readiness == nil {
		return
	}
	if err := l.parts.Readiness.Restore(); err != nil {
		l.parts.Logger.Warn("the pod becomes ready a few seconds later", "error", err.Error())
	}
}

// pause waits for d, and reports false if the context ended first.
func pause(ctx context.Context, d time.Duration) (ok bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// await starts a wait for PostgreSQL, which doze.cancel ends.
func (l *Loop) await(ctx context.Context, a sleep.Action, wait func(context.Context) error) {
	waiting, cancel := context.WithCancel(ctx)
	l.doze.stopWaiting = cancel
	l.begin(ctx, func(context.Context) func() {
		err := wait(waiting)
		return func() {
			canceled := waiting.Err() != nil
			cancel()
			l.doze.stopWaiting = nil
			switch {
			case canceled:
				l.advance(ctx, sleep.Completed{Action: a, Outcome: sleep.Refused})
				return
			case err == nil: // whoever runs from now on is not the one that was fenced
				l.doze.before, l.doze.inherited = fence.Postmaster{}, false
			}
			l.completed(ctx, sleep.Completed{Action: a}, err)
		}
	})
}

// notePostmaster records the postmaster that a fence stops, or may have stopped.
func (l *Loop) notePostmaster() {
	postmaster, err := l.parts.Instance.Read()
	if err != nil {
		l.parts.Logger.Warn("which PostgreSQL is fenced is not known", "error", err.Error())
	}
	l.doze.before = postmaster
}

// fenced reports whether PostgreSQL is stopped for a doze, or may be: it cannot be sampled.
func (l *Loop) fenced() bool { return l.machine.Phase().Fenced() || l.status.View.Dozing }

// fenceChanged notes that PostgreSQL is fenced, or is not any more.
func (l *Loop) fenceChanged(fenced bool) {
	l.doze.fenced = fenced
	if !fenced {
		l.status.State = idle.State{} // after a wake the idle clock starts anew
		l.parts.Monitor.SampleSoon()
		return
	}
	l.parts.Monitor.CloseSessions()
	l.doze.generation, l.doze.operator, l.doze.retry = l.status.View.Generation, l.status.View.Operator, time.Time{}
	if l.doze.before == (fence.Postmaster{}) && l.status.View.Stopped != l.parts.PodUID { // after a restart of this process
		l.notePostmaster()
	}
	l.status.Known, l.status.InUse = false, false
	l.status.Decision = idle.Decision{Reason: idle.ReasonDozing, Blockers: []idle.Reason{idle.ReasonDozing}}
	l.parts.Observer.Publish(l.status)
}

// resize has the pod's requests shrink once PostgreSQL is recorded as stopped, and grow back as soon as the fence is lifted. What
// an earlier process has shrunk grows back too.
func (l *Loop) resize() {
	v := l.status.View
	stopping := v.Dozing && v.Stopped != l.parts.PodUID
	if l.parts.Requests == nil || v.CurrentPrimary != l.parts.Pod || stopping || l.doze.sized && l.doze.small == v.Dozing {
		return
	}
	l.doze.sized, l.doze.small = true, v.Dozing
	l.parts.Requests.Want(v.Dozing)
}

// growthRefused delivers why the pod's requests stay small after a doze.
func (l *Loop) growthRefused() <-chan error {
	if l.parts.Requests == nil {
		return nil
	}
	return l.parts.Requests.Refused()
}

// mayDoze reports whether a cluster that dozes may go on.
func (l *Loop) mayDoze() bool {
	v, policy := l.status.View, l.status.Policy
	return policy.Enabled && len(l.status.Problems) == 0 && policy.Doze != 0 && !policy.Manual && v.PluginListed && l.siblingCount() == 0
}

// hibernateRetry is the wait after a failed attempt to hibernate a cluster that dozes.
const hibernateRetry = 30 * time.Second

// hibernatesAt returns when the dozing cluster is to hibernate: when it has been idle for the threshold, or at once if that was
// requested, or if its specification, its operator or a plugin has changed: what follows from that the operator carries out only
// once the cluster is awake, and would then restart PostgreSQL under the client that woke it.
func (l *Loop) hibernatesAt() time.Time {
	v, policy := l.status.View, l.status.Policy
	if l.machine.Phase() != sleep.Dozing {
		return time.Time{}
	}
	at := v.DozingSince.Add(policy.Threshold - policy.Doze)
	requested := !policy.SleepRequested.IsZero() && !policy.SleepRequested.Before(v.DozingSince) // both are in whole seconds
	if requested || v.Generation != l.doze.generation || v.Operator != l.doze.operator {
		at = v.DozingSince
	}
	return later(at, l.doze.retry)
}

// hibernateDozing hibernates the dozing cluster, unless the Cluster says something against it.
func (l *Loop) hibernateDozing(ctx context.Context) {
	l.doze.retry = time.Now().Add(hibernateRetry)
	now := time.Now()
	if l.parse(now); l.status.Policy.KeepsAwake(now) {
		return
	}
	for _, reason := range l.status.View.Blockers(l.parts.Pod) {
		if reason != idle.ReasonDozing && reason != idle.ReasonUnhealthy {
			return
		}
	}
	l.advance(ctx, sleep.Observed{})
}

// reportDoze reports that the cluster dozes.
func (l *Loop) reportDoze(ctx context.Context) {
	since := l.status.State.IdleSince.UTC().Format(time.RFC3339)
	l.parts.Logger.Info("the cluster is fenced to doze", "idleSince", since, "suspended", l.attempt.suspended)
	l.recorder.write(ctx, l.status.View, kubernetes.EventNormal, "Dozed",
		"Dozing: idle since "+since+", for the "+l.status.Policy.Doze.String()+" of doze-minutes; hibernates at "+
			l.status.View.DozingSince.Add(l.status.Policy.Threshold-l.status.Policy.Doze).UTC().Format(time.RFC3339))
}
