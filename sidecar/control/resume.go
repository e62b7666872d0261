package control

import (
	"context"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// lastResumeRetry bounds the wait between two tries to resume.
const lastResumeRetry = time.Minute

// resuming remembers that ScheduledBackups may carry our mark.
type resuming struct {
	pending bool
	retry   retry
}

// ask says that there may be something to resume.
func (r *resuming) ask() { *r = resuming{pending: true} }

// resume resumes what was suspended by us, once the cluster is awake and healthy and this instance is its primary, whoever
// woke it.
func (l *Loop) resume(ctx context.Context, now time.Time) {
	v := l.status.View
	awake := l.status.ViewKnown && v.Healthy && !v.Hibernating && v.CurrentPrimary == l.parts.Pod && v.TargetPrimary == l.parts.Pod
	if !l.resuming.pending || !awake || l.resuming.retry.tooSoon(now) {
		return
	}
	resumed, err := l.parts.Kubernetes.ResumeBackups(ctx)
	if err != nil {
		l.resuming.retry.later(now, firstRetry, lastResumeRetry)
		l.parts.Logger.Warn("the ScheduledBackups could not be resumed", "error", err.Error())
		return
	}
	l.resuming = resuming{}
	if resumed != 0 {
		l.parts.Logger.Info("the ScheduledBackups are resumed", "resumed", resumed)
		l.parts.Kubernetes.Record(ctx, v, kubernetes.Event{
			Type: kubernetes.EventNormal, Reason: "Resumed",
			Message: fmt.Sprintf("ScheduledBackups resumed: %d", resumed),
		}, now)
	}
}
