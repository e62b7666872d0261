package control

import (
	"context"
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/pause"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// restartPendingFor is how long after a wake a new process may still have to watch the start of PostgreSQL: as long as the process
// before it would have watched, and as long again for the restart of the container.
const restartPendingFor = 2 * doze.StartTimeout

// restartPending reports, from the first state of the Cluster, whether a client or a Backup has just ended a doze and PostgreSQL
// has not been started since. Such a wake removes the annotations of the doze. If PostgreSQL runs, the pod must stay ready, since
// Services lead to it.
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

// guardStart checks whether PostgreSQL serves if the Cluster does not become known soon, because the API server is away. An earlier
// process may have fenced the instance, and for half a minute after PostgreSQL's stop the kubelet still takes it for ready. So the
// pod is kept unready as long as PostgreSQL is known not to accept sessions, or is known to be stopping. One that is too busy to answer
// serves.
func (l *Loop) guardStart(ctx context.Context, withdrawn bool) {
	if l.parts.Readiness == nil {
		return
	}
	instance := l.parts.Instance
	l.begin(ctx, func(ctx context.Context) func() {
		pause.For(ctx, guardInterval)
		stopping, known := instance.Stopping(ctx)
		accepts, unanswered := instance.Accepts(ctx)
		postmaster, unread := instance.Read()
		down := known && stopping || unanswered == nil && !accepts || unread == nil && !postmaster.Running
		return func() {
			switch {
			case l.status.ViewKnown:
			case down:
				if err := l.parts.Readiness.Withdraw(ctx); err != nil {
					l.parts.Logger.Warn("the pod may become ready before PostgreSQL serves", "error", err.Error())
				}
				l.guardStart(ctx, true)
			case withdrawn:
				l.readiness.restore()
			}
		}
	})
}

// watchRestart watches for a failed start of PostgreSQL after a doze, and records it on the Cluster. The instance manager tries only
// once to start PostgreSQL. A failure is recorded once for each wake, so that the plugin replaces one pod.
func (l *Loop) watchRestart(ctx context.Context) {
	v := l.status.View
	watch := l.machine.Phase() == sleep.Restarting && v.CurrentPrimary == l.parts.Pod && !v.Fenced && !v.Hibernating &&
		!v.ReconciliationDisabled && v.RestartFailed == "" // nobody would create the pod again
	switch {
	case !watch:
		l.doze.endWatch()
	case l.doze.conflictedVersion != "" && l.doze.conflictedVersion != v.ResourceVersion:
		l.doze.conflictedVersion = ""
		l.recordRestartFailed(ctx)
	case l.doze.cancelStartWatch == nil:
		watching, cancel := context.WithCancel(ctx)
		l.doze.cancelStartWatch = cancel
		l.begin(ctx, func(context.Context) func() {
			err := l.parts.Instance.AwaitStartFailed(watching)
			return func() {
				if err == nil && watching.Err() == nil {
					l.recordRestartFailed(ctx)
				}
			}
		})
	}
}

// endWatch ends the watch, and discards its result.
func (d *dozeState) endWatch() {
	if d.cancelStartWatch != nil {
		d.cancelStartWatch()
	}
	d.cancelStartWatch, d.conflictedVersion = nil, ""
}

// recordRestartFailed records the failure on the Cluster. If that fails, the watch starts again; after a conflict, the record is
// written again as soon as the change that caused it is known.
func (l *Loop) recordRestartFailed(ctx context.Context) {
	client, view := l.parts.Kubernetes, l.status.View
	l.begin(ctx, func(ctx context.Context) func() {
		v, err := client.Annotate(ctx, view, contract.AnnotationRestartFailed, &l.parts.PodUID)
		return func() {
			l.doze.endWatch()
			if err != nil {
				if errors.Is(err, kubernetes.ErrConflict) {
					l.doze.conflictedVersion = view.ResourceVersion
				}
				l.parts.Logger.Warn("cannot record that PostgreSQL was not started", "error", err.Error())
				l.watchRestart(ctx)
				return
			}
			l.parts.Logger.Error("PostgreSQL was not started after a doze", "within", doze.StartTimeout.String())
			l.recorder.write(ctx, v, kubernetes.EventWarning, "RestartFailed",
				"PostgreSQL was not started within "+doze.StartTimeout.String()+" after a doze; the plugin deletes pod "+l.parts.Pod+
					", once, so that the operator creates it again")
			l.adopt(ctx, v)
		}
	})
}
