package control

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// dozeState is the state of the current doze, or of an attempt to doze.
type dozeState struct {
	// fenced is what fenced has last returned.
	fenced bool
	// fencedPostmaster is the postmaster that a fence stops, or may have stopped; the zero value if it is known to have stopped.
	fencedPostmaster doze.Postmaster
	// cancelWait ends the wait for PostgreSQL to stop or to serve; nil without one.
	cancelWait context.CancelFunc
	// cancelStartWatch ends the watch for a failed start of PostgreSQL; nil without one.
	cancelStartWatch context.CancelFunc
	// restartPending says that a doze ended before this process was started, and that PostgreSQL has not been started since.
	restartPending bool
	// conflictedVersion is the resourceVersion of the Cluster for which recording a failed start met a conflict; empty without one.
	conflictedVersion string
	// endGuard ends guardStart.
	endGuard context.CancelFunc
	// specification is that of the Cluster at the last sample before it was fenced, and retry is when hibernation is tried again.
	specification string
	retry         time.Time
	// archiver is what the last preparation found against a doze, or "", and archiverIdle since when the cluster was idle then. Each
	// preparation costs a checkpoint and a WAL file, so the next one waits until the cluster has been idle for as long again.
	archiver                   idle.Reason
	archiverIdle, archiverNext time.Time
	// sized reports whether a size of the requests was asked for, and small whether it was that of a doze.
	sized, small bool
}

func (d *dozeState) cancel() {
	if d.cancelWait != nil {
		d.cancelWait()
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
			return func() {
				since := l.status.State.IdleSince
				l.doze.archiver, l.doze.archiverIdle, l.doze.archiverNext = reason, since, time.Now().Add(time.Since(since))
				l.completed(ctx, sleep.Completed{Action: a, Blocker: reason}, err)
			}
		})
	case sleep.WithdrawReadiness:
		l.withdrawReadiness(ctx)
	case sleep.Fence:
		l.attempt.judged = l.status.State
		l.doze.notePostmaster(l.parts.Instance, l.parts.Logger)
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
		before := l.doze.fencedPostmaster
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

// preparation cancels the preparation of PostgreSQL, whose session could delay a shutdown.
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

// withdrawReadiness withdraws the readiness. The action is completed with the result of the first try; after a failure it is tried
// again until it succeeds or the readiness is restored.
func (l *Loop) withdrawReadiness(ctx context.Context) {
	if l.parts.Readiness == nil { // our fence was set on a pod that was created without the probe
		l.completed(ctx, sleep.Completed{Action: sleep.WithdrawReadiness}, errNoProbe)
		return
	}
	withdraw := l.readiness.withdrawal(ctx)
	l.begin(ctx, func(context.Context) func() {
		err := withdraw()
		return func() { l.completed(ctx, sleep.Completed{Action: sleep.WithdrawReadiness}, err) }
	})
}

// errDrained means that no session may be held any more.
var errDrained = errors.New("the sidecar is drained, since the pod ends")

// errNoProbe means that the pod has no readiness probe of ours.
var errNoProbe = errors.New("the pod was made without the readiness probe of a doze")

// await starts a wait for PostgreSQL, which doze.cancel ends.
func (l *Loop) await(ctx context.Context, a sleep.Action, wait func(context.Context) error) {
	waiting, cancel := context.WithCancel(ctx)
	l.doze.cancelWait = cancel
	l.begin(ctx, func(context.Context) func() {
		err := wait(waiting)
		return func() {
			canceled := waiting.Err() != nil
			cancel()
			l.doze.cancelWait = nil
			switch {
			case canceled:
				l.advance(ctx, sleep.Completed{Action: a, Outcome: sleep.Refused})
				return
			case err == nil: // a postmaster that runs from now on is not the fenced one
				l.doze.fencedPostmaster, l.doze.restartPending = doze.Postmaster{}, false
			}
			l.completed(ctx, sleep.Completed{Action: a}, err)
		}
	})
}

// notePostmaster records the postmaster that a fence stops, or may have stopped.
func (d *dozeState) notePostmaster(instance Instance, logger *slog.Logger) {
	postmaster, err := instance.Read()
	if err != nil {
		logger.Warn("cannot tell which PostgreSQL is fenced", "error", err.Error())
	}
	d.fencedPostmaster = postmaster
}

// fenced reports whether PostgreSQL is stopped for a doze, or may be: it cannot be sampled.
func (l *Loop) fenced() bool { return l.machine.Phase().Fenced() || l.status.View.Dozing }

// fenceChanged handles that PostgreSQL is fenced, or no longer fenced.
func (l *Loop) fenceChanged(fenced bool) {
	l.doze.fenced = fenced
	if !fenced {
		l.status.State = idle.State{} // after a wake the idle clock starts anew
		l.parts.Monitor.SampleSoon()
		return
	}
	l.parts.Monitor.CloseSessions()
	l.doze.specification, l.doze.retry = cmp.Or(l.parts.Monitor.SavedSpecification(), specification(l.status.View)), time.Time{}
	if l.doze.fencedPostmaster == (doze.Postmaster{}) && l.status.View.Stopped != l.parts.PodUID { // after a restart of this process
		l.doze.notePostmaster(l.parts.Instance, l.parts.Logger)
	}
	l.status.Known, l.status.InUse = false, false
	l.status.Decision = idle.Decision{Reason: idle.ReasonDozing, Blockers: []idle.Reason{idle.ReasonDozing}}
	l.parts.Observer.Publish(l.status)
}

// resize lowers the pod's requests once PostgreSQL is recorded as stopped, and raises them as soon as the fence is lifted, also if an
// earlier process has lowered them.
func (d *dozeState) resize(requests Requests, v kubernetes.View, podUID string) {
	stopping := v.Dozing && v.Stopped != podUID
	if stopping || d.sized && d.small == v.Dozing {
		return
	}
	d.sized, d.small = true, v.Dozing
	requests.Want(v.Dozing)
}

// hibernatesAt returns when the dozing cluster is to hibernate: when it has been idle for the threshold, or at once if that was
// requested, or if its specification, its operator or a plugin has changed. The operator applies such a change only once the
// cluster is awake, and would then restart PostgreSQL under the client that woke it.
func (d *dozeState) hibernatesAt(phase sleep.Phase, s *Status) time.Time {
	v, policy := s.View, s.Policy
	if phase != sleep.Dozing {
		return time.Time{}
	}
	at := v.DozingSince.Add(policy.Threshold - policy.Doze)
	if s.requestedDozing() || specification(v) != d.specification {
		at = v.DozingSince
	}
	return later(at, d.retry)
}

// hibernateRetry is the wait after a failed attempt to hibernate a cluster that dozes.
const hibernateRetry = 30 * time.Second

// hibernateDozing hibernates the dozing cluster, unless a blocker other than the doze itself keeps it from that.
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
