package control

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// report reports how an attempt ended in the log, the metrics and Events.
func (l *Loop) report(ctx context.Context, r sleep.Report) {
	l.parts.Observer.Attempted(r.Result, r.Doze)
	switch r.Result {
	case sleep.ResultSuccess:
		l.reportSuccess(ctx, r.Doze)
	case sleep.ResultAborted:
		l.reportAborted(ctx, r.Reason)
	case sleep.ResultConflict:
		l.aborted = ""
		l.parts.Logger.Info("the Cluster changed while it was being put to sleep", "action", r.Action.String())
	case sleep.ResultError:
		l.aborted = ""
		l.parts.Logger.Error("cannot put the cluster to sleep", "action", r.Action.String())
	case sleep.ResultWithdrawn:
		l.reportWithdrawn(ctx, r.Reason, r.Doze)
	}
}

func (l *Loop) reportSuccess(ctx context.Context, doze bool) {
	l.aborted, l.withdrawn = "", 0
	if l.attempt.judged == (idle.State{}) { // the patch is that of an earlier process
		l.attempt.judged = l.status.State
	}
	if doze {
		l.reportDoze(ctx)
		return
	}
	since := l.attempt.judged.IdleSince.UTC().Format(time.RFC3339)
	l.parts.Logger.Info("the cluster is put to sleep", "idleSince", since, "suspended", l.attempt.suspended, "terminated", l.attempt.ended, "unconfirmed", l.attempt.unconfirmed)
	l.recorder.write(ctx, l.status.View, kubernetes.EventNormal, "Hibernated", putToSleep(l.status.View, l.attempt))
	if ignored := l.attempt.ignored; ignored != (activity.Terminable{}) {
		l.recorder.write(ctx, l.status.View, kubernetes.EventWarning, "WokenByIgnored", fmt.Sprintf(
			"A client at %s woke the cluster, but its session (user %q) is ignored, so nobody used it, and the client waits longer each time. "+
				"Only an item of %s that consists of client= alone keeps it from waking the cluster: client=%s, unless other clients share the address",
			ignored.Client, ignored.User, contract.AnnotationIgnore, ignored.Client))
	}
}

// putToSleep returns the Event's message.
func putToSleep(v kubernetes.View, done attempt) string {
	ended := strconv.Itoa(done.ended)
	if done.unconfirmed != 0 {
		ended = fmt.Sprintf("at most %d", done.ended+done.unconfirmed)
	}
	return fmt.Sprintf("Put to sleep: %s; suspended ScheduledBackups: %d; ended sessions that do not count: %s", asleepReason(v, done), done.suspended, ended)
}

func (l *Loop) reportAborted(ctx context.Context, reason idle.Reason) {
	l.aborted = reason
	l.status.Decision.Action, l.status.Decision.Reason = idle.ActionNone, reason
	if l.status.Decision.ThresholdPassed {
		l.status.Decision.Blockers = []idle.Reason{reason}
		l.recorder.decided(ctx, l.status)
	}
	attributes := []any{"reason", reason}
	if reason == idle.ReasonActive { // otherwise nobody learns of a client that is gone again
		attributes = append(attributes, "sessions", l.status.Tally.ByState(), "lastUnseenClient", l.status.LastPeer)
	}
	l.parts.Logger.Info("the cluster is not put to sleep after all", attributes...)
}

func (l *Loop) reportWithdrawn(ctx context.Context, reason idle.Reason, doze bool) {
	what, why := "Hibernation", "the operator did not start to hibernate the cluster in time"
	if doze {
		what, why = "The doze", "the instance manager does not stop PostgreSQL"
	}
	if reason == idle.ReasonActive {
		why = "the database is in use after all"
		if l.attempt.ended+l.attempt.unconfirmed != 0 {
			l.withdrawn++
		}
	}
	l.parts.Logger.Info("sleep is withdrawn", "doze", doze, "why", why)
	l.recorder.write(ctx, l.status.View, kubernetes.EventWarning, "SleepWithdrawn", what+" is withdrawn: "+why)
}
