package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// restartPendingFor is how long after a wake a new process may still have to watch the start of PostgreSQL: as long as
// the process before it would have watched, and as long again for the restart of the container.
const restartPendingFor = 2 * doze.StartTimeout

// restartPending reports, from the first state of the Cluster, whether a client or a Backup has just ended a doze and
// PostgreSQL has not been started since. Such a wake removes the annotations of the doze. If PostgreSQL runs, the pod
// must stay ready, because its Services route clients to it.
func restartPending(v kubernetes.View, pod string, instance Instance) bool {
	wake, err := contract.ParseLastWake(v.Annotations[contract.AnnotationLastWake])
	if err != nil || wake.Depth != contract.DepthDoze || time.Since(wake.At) > restartPendingFor ||
		v.Fenced || v.Hibernating || v.CurrentPrimary != pod {
		return false
	}
	postmaster, err := instance.Read()
	return err == nil && !postmaster.Running
}

// guardInterval is the interval between two checks whether PostgreSQL serves, before the Cluster is known.
const guardInterval = time.Second

// guardStart checks whether PostgreSQL serves if the Cluster does not become known soon, because the API server is
// unreachable. An earlier process may have fenced the instance, and for half a minute after PostgreSQL's stop the
// kubelet still considers it ready. So the pod is kept unready as long as PostgreSQL is known not to accept sessions,
// or is known to be stopping. A PostgreSQL that is too busy to answer counts as serving.
func (p *pod) guardStart(ctx context.Context) {
	var guarding sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	p.endGuard = func() { cancel(); guarding.Wait() }
	if p.Readiness == nil {
		return
	}
	guarding.Go(func() {
		for withdrawn := false; process.Pause(ctx, guardInterval); withdrawn = true {
			stopping, known := p.Instance.Stopping(ctx)
			accepts, unanswered := p.Instance.Accepts(ctx)
			postmaster, unread := p.Instance.Read()
			down := known && stopping || unanswered == nil && !accepts || unread == nil && !postmaster.Running
			if ctx.Err() != nil || !down && !withdrawn {
				return
			}
			if !down {
				p.restoreReadiness()
				return
			}
			if err := p.Readiness.Withdraw(ctx); err != nil {
				p.Logger.Warn("cannot withdraw the readiness of the pod, which may become ready before PostgreSQL serves", "error", err.Error())
			}
		}
	})
}

// restartWatch watches for a failed start of PostgreSQL after a doze. The instance manager tries only once to start
// PostgreSQL. A failure is recorded once for each wake, so that the plugin replaces one pod.
type restartWatch struct {
	// cancel ends the watch; nil without one.
	cancel context.CancelFunc
	// conflicted is the resourceVersion of the Cluster for which recording a failed start met a conflict; empty without
	// one.
	conflicted string
}

// end ends the watch, and discards its result.
func (w *restartWatch) end() {
	if w.cancel != nil {
		w.cancel()
	}
	*w = restartWatch{}
}

// startFailed is the result of a watch: PostgreSQL was not started, unless there is an error.
type startFailed struct {
	watch context.Context
	err   error
}

// watchRestart watches while PostgreSQL is to start after a doze.
func (k *cluster) watchRestart(ctx context.Context, restarting bool, v kubernetes.View) task {
	w := &k.restart
	switch {
	case !restarting, v.CurrentPrimary != k.Pod, v.Fenced, v.Hibernating,
		v.ReconciliationDisabled, v.RestartFailed != "": // nobody would create the pod again
		w.end()
	case w.conflicted != "" && w.conflicted != v.ResourceVersion:
		w.conflicted = ""
		return k.recordRestartFailed(v)
	case w.cancel == nil:
		ctx, w.cancel = context.WithCancel(ctx)
		return func(context.Context) event { return startFailed{watch: ctx, err: k.Instance.AwaitStartFailed(ctx)} }
	}
	return nil
}

// recordRestartFailed records the failure on the Cluster.
func (k *cluster) recordRestartFailed(v kubernetes.View) task {
	return k.annotate(contract.AnnotationRestartFailed, v, func(ctx context.Context) (kubernetes.View, error) {
		return k.Kubernetes.Annotate(ctx, v, contract.AnnotationRestartFailed, &k.PodUID)
	})
}

// recordedRestartFailed ends the watch. If the failure could not be recorded, it starts again; after a conflict, the
// record is written again as soon as the change that caused it is known.
func (k *cluster) recordedRestartFailed(e annotated) {
	k.restart.end()
	if e.err == nil {
		k.Logger.Error("PostgreSQL was not started after a doze", "within", doze.StartTimeout.String())
		return
	}
	if errors.Is(e.err, kubernetes.ErrConflict) {
		k.restart.conflicted = e.before
	}
	k.Logger.Warn("cannot record that PostgreSQL was not started", "error", e.err.Error())
}
