package control

import (
	"context"
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/fence"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// inheritedFor is how long after a wake a process that is started may still have to watch: for as long as the one before it, and for
// as long again until the container runs again.
const inheritedFor = 2 * fence.StartsWithin

// inheritsRestart reports, from the first state of the Cluster, whether somebody who leaves no mark has ended a doze a moment ago and
// PostgreSQL has not been started since. If it has, nothing may happen: Services lead to the pod.
func (l *Loop) inheritsRestart(v kubernetes.View) bool {
	wake, err := contract.ParseLastWake(v.Annotations[contract.AnnotationLastWake])
	if err != nil || wake.Depth != contract.DepthDoze || time.Since(wake.At) > inheritedFor ||
		v.Fenced || v.Hibernating || v.CurrentPrimary != l.parts.Pod {
		return false
	}
	postmaster, err := l.parts.Instance.Read()
	return err == nil && !postmaster.Running
}

// watchRestart has it recorded on the Cluster when PostgreSQL is not started again after a doze, whose end the instance manager
// answers with one try. It is recorded once for each wake, so that the plugin replaces one pod.
func (l *Loop) watchRestart(ctx context.Context) {
	v := l.status.View
	watch := l.machine.Phase() == sleep.Restarting && v.CurrentPrimary == l.parts.Pod && !v.Fenced && !v.Hibernating &&
		!v.ReconciliationDisabled && v.RestartFailed == "" // nobody would make the pod anew
	switch {
	case !watch:
		l.endWatch()
	case l.doze.conflicted != "" && l.doze.conflicted != v.ResourceVersion:
		l.doze.conflicted = ""
		l.recordRestartFailed(ctx)
	case l.doze.stopWatching == nil:
		watching, cancel := context.WithCancel(ctx)
		l.doze.stopWatching = cancel
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

// endWatch ends the watch, and forgets what it has found.
func (l *Loop) endWatch() {
	if l.doze.stopWatching != nil {
		l.doze.stopWatching()
	}
	l.doze.stopWatching, l.doze.conflicted = nil, ""
}

// recordRestartFailed records the failure. If that does not succeed, PostgreSQL is watched anew; after a conflict it is repeated as
// soon as the change that caused it is known.
func (l *Loop) recordRestartFailed(ctx context.Context) {
	client, view := l.parts.Kubernetes, l.status.View
	l.begin(ctx, func(ctx context.Context) func() {
		v, err := client.Annotate(ctx, view, contract.AnnotationRestartFailed, &l.parts.PodUID)
		return func() {
			l.endWatch()
			if err != nil {
				if errors.Is(err, kubernetes.ErrConflict) {
					l.doze.conflicted = view.ResourceVersion
				}
				l.parts.Logger.Warn("that PostgreSQL was not started could not be recorded", "error", err.Error())
				l.watchRestart(ctx)
				return
			}
			l.parts.Logger.Error("PostgreSQL was not started after a doze", "within", fence.StartsWithin.String())
			l.recorder.write(ctx, v, kubernetes.EventWarning, "RestartFailed",
				"PostgreSQL was not started within "+fence.StartsWithin.String()+" after a doze; the plugin deletes pod "+l.parts.Pod+
					", once, so that the operator creates it again")
			if l.setView(v) { // the next patch requires its resourceVersion, so the machine must know its content
				l.advance(ctx, sleep.Viewed{View: l.sleepView()})
			}
		}
	})
}
