package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

const (
	// withdrawAfter is how long the operator may take to begin before the switch is withdrawn: it would otherwise delete the
	// primary whenever it is back, or the cluster is healthy again, clients or not.
	withdrawAfter = 15 * time.Second
	// reconsiderEvery is how often the instance is looked at meanwhile.
	reconsiderEvery = time.Second
)

// reconsider withdraws the switch that we turned on while the operator has not begun to delete pods: if somebody uses the
// database after all, and in any case after a while. The patch fails if the operator has begun since.
func (l *Loop) reconsider(ctx context.Context) {
	v := l.status.View
	if !v.Hibernating || v.CurrentPrimary != l.parts.Pod || !v.Untouched() || !l.drainedSince().IsZero() {
		return
	}
	l.due = time.Now().Add(reconsiderEvery)
	if !v.Ours { // what we see is older than our patch, or a person has turned the switch on
		return
	}
	why := ""
	switch since := later(l.switched, v.AsleepSince); {
	case time.Since(since) >= withdrawAfter:
		why = fmt.Sprintf("the operator has not begun to hibernate the cluster within %s", withdrawAfter)
	case l.inUseNow(ctx):
		why = "the database is in use after all"
	default:
		return
	}
	err := l.parts.Kubernetes.Withdraw(ctx, v)
	switch {
	case errors.Is(err, kubernetes.ErrConflict): // the next view says what has changed
	case err != nil:
		l.parts.Logger.Warn("the switch could not be withdrawn", "error", err.Error())
	default:
		l.stay()
		l.status.View.Hibernating = false
		l.resuming.ask()
		l.parts.Observer.Attempted(ResultWithdrawn)
		l.parts.Logger.Info("the switch is withdrawn", "why", why)
		l.parts.Kubernetes.Record(ctx, v, kubernetes.Event{
			Type: kubernetes.EventWarning, Reason: "SleepWithdrawn", Message: "Hibernation is withdrawn: " + why,
		}, time.Now())
	}
}
