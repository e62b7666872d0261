package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// pod does what a sleep needs in this pod.
type pod struct {
	Parts
	ends    ends
	running sync.WaitGroup // the repeated withdrawal of the readiness
	// endGuard ends guardStart.
	endGuard func()
	// postmaster is the one that a fence stops, or may have stopped; the zero value if it is known to have stopped.
	postmaster doze.Postmaster
	// restartPending says that a doze ended before this process was started, and that PostgreSQL has not been started
	// since.
	restartPending bool
	// sized reports whether a size of the requests was asked for, and small whether it was that of a doze.
	sized, small bool
}

// inPod are the actions that pod carries out.
const inPod = sleep.Prepare | sleep.WithdrawReadiness | sleep.RestoreReadiness | sleep.AwaitStop | sleep.AwaitServing |
	sleep.CancelWait | sleep.AskManager | sleep.LeaveMarker | sleep.RemoveMarker

// start starts an action. It carries out those that are not answered.
func (p *pod) start(ctx context.Context, o order) task {
	switch o.action {
	case sleep.LeaveMarker:
		if err := p.Marker.Leave(); err != nil {
			p.Logger.Warn("cannot leave the marker for the preStop hook; PostgreSQL shuts down without waiting for the nodes", "error", err.Error())
		}
	case sleep.RemoveMarker:
		if err := p.Marker.Remove(); err != nil {
			p.Logger.Warn("cannot remove the marker for the preStop hook; the next termination of the pod may take two seconds longer", "error", err.Error())
		}
	case sleep.RestoreReadiness:
		p.restoreReadiness()
	case sleep.CancelWait:
		p.ends.end(sleep.AwaitStop | sleep.AwaitServing)
	default:
		if o.fenced = p.postmaster; o.action != sleep.AskManager {
			ctx = p.ends.begin(ctx, o.action)
		}
		return func(context.Context) event { return p.do(ctx, o) }
	}
	return nil
}

// errDrained means that no session may be held any more.
var errDrained = errors.New("the sidecar is drained, because the pod ends")

// errNoProbe means that the pod has no readiness probe of ours.
var errNoProbe = errors.New("the pod was made without the readiness probe of a doze")

// do carries out an action that is answered. It is called concurrently with the loop.
func (p *pod) do(ctx context.Context, o order) completed {
	c := completed{Completed: sleep.Completed{Action: o.action}}
	switch o.action {
	case sleep.Prepare:
		if c.err = errDrained; !p.Monitor.Drained() {
			c.Blocker, c.err = p.Instance.Prepare(ctx)
		}
	case sleep.WithdrawReadiness:
		if p.Readiness == nil { // our fence was set on a pod that was created without the probe
			c.err = errNoProbe
		} else if c.err = p.Readiness.Withdraw(ctx); c.err != nil {
			p.running.Go(func() { // the machine uses the result of the first try
				for process.Pause(ctx, withdrawRetry) && p.Readiness.Withdraw(ctx) != nil {
				}
			})
		}
	case sleep.AwaitStop:
		c.err = p.Instance.AwaitStopped(ctx)
	case sleep.AwaitServing:
		c.err = p.Instance.AwaitServing(ctx, o.fenced)
	case sleep.AskManager:
		stopping, known := p.Instance.Stopping(ctx)
		c.Ignored = known && !stopping
	default: // the others are not answered, or are not for the pod
	}
	return c
}

// ends holds the cancel functions of the running actions.
type ends struct {
	mutex sync.Mutex
	of    map[sleep.Action]context.CancelFunc // of the actions that have begun
}

// begin returns the context of an action.
func (e *ends) begin(ctx context.Context, a sleep.Action) context.Context {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	ctx, e.of[a] = context.WithCancel(ctx)
	return ctx
}

// end cancels those of the actions that are running, and reports whether there was one. It may be called from any
// goroutine.
func (e *ends) end(actions sleep.Action) (ok bool) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for a, end := range e.of {
		if a&actions != 0 {
			end()
			delete(e.of, a)
			ok = true
		}
	}
	return ok
}

// withdrawRetry is the wait before a failed attempt to withdraw the readiness is repeated.
const withdrawRetry = time.Second

// restoreReadiness makes the pod ready again.
func (p *pod) restoreReadiness() {
	p.ends.end(sleep.WithdrawReadiness)
	if p.Readiness != nil {
		if err := p.Readiness.Restore(); err != nil {
			p.Logger.Warn("cannot restore the readiness of the pod, which becomes ready a few seconds later", "error", err.Error())
		}
	}
}

// notePostmaster records the postmaster that a fence stops, or may have stopped.
func (p *pod) notePostmaster() {
	postmaster, err := p.Instance.Read()
	if err != nil {
		p.Logger.Warn("cannot tell which PostgreSQL is fenced", "error", err.Error())
	}
	p.postmaster = postmaster
}

// resize lowers the pod's requests once PostgreSQL is recorded as stopped, and raises them as soon as the fence is
// lifted, also if an earlier process has lowered them.
func (p *pod) resize(v kubernetes.View) {
	stopping := v.Dozing && v.Stopped != p.PodUID
	if p.Requests == nil || stopping || p.sized && p.small == v.Dozing {
		return
	}
	p.sized, p.small = true, v.Dozing
	p.Requests.Want(v.Dozing)
}
