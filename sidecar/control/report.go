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

// reporter reports how attempts end in the log, the metrics and Events.
type reporter struct {
	recorder
	observer  Observer
	aborted   idle.Reason // why the last attempt was aborted, unless for a client; or empty
	withdrawn int         // how many sleeps in a row were withdrawn for a client after sessions had been ended
}

// report reports how an attempt ended.
func (p *reporter) report(ctx context.Context, s *Status, done *attempt, r sleep.Report) {
	p.observer.Attempted(r.Result, r.Doze)
	switch r.Result {
	case sleep.ResultSuccess:
		p.success(ctx, s, done, r.Doze)
	case sleep.ResultAborted:
		p.abort(ctx, s, r.Reason)
	case sleep.ResultConflict:
		p.aborted = ""
		p.logger.Info("the Cluster changed while it was being put to sleep", "action", r.Action.String())
	case sleep.ResultError:
		p.aborted = ""
		p.logger.Error("cannot put the cluster to sleep", "action", r.Action.String())
	case sleep.ResultWithdrawn:
		p.withdrawal(ctx, s, done, r)
	}
}

func (p *reporter) success(ctx context.Context, s *Status, done *attempt, doze bool) {
	p.aborted, p.withdrawn = "", 0
	if done.judged == (idle.State{}) { // the patch is that of an earlier process
		done.judged = s.State
	}
	if doze {
		p.doze(ctx, s, done)
		return
	}
	since := done.judged.IdleSince.UTC().Format(time.RFC3339)
	p.logger.Info("the cluster is put to sleep", "idleSince", since, "suspended", done.suspended, "terminated", done.ended, "unconfirmed", done.unconfirmed)
	p.write(ctx, s.View, kubernetes.EventNormal, "Hibernated", putToSleep(s.View, *done))
	if ignored := done.ignored; ignored != (activity.Terminable{}) {
		p.write(ctx, s.View, kubernetes.EventWarning, "WokenByIgnored", fmt.Sprintf(
			"A client at %s woke the cluster, but its session (user %q) is ignored, so the wake was unused, and the client waits longer each time. "+
				"To keep it from waking the cluster, add an item to %s that consists only of client=%s, unless other clients share the address",
			ignored.Client, ignored.User, contract.AnnotationIgnore, ignored.Client))
	}
}

// doze reports that the cluster dozes.
func (p *reporter) doze(ctx context.Context, s *Status, done *attempt) {
	since := done.judged.IdleSince.UTC().Format(time.RFC3339)
	p.logger.Info("the cluster is fenced to doze", "idleSince", since, "suspended", done.suspended)
	p.write(ctx, s.View, kubernetes.EventNormal, "Dozed", dozed(s, *done))
}

// dozed returns the Event's message.
func dozed(s *Status, done attempt) string {
	reason := idleReason(done)
	if done.judged.Unused.IsZero() {
		reason += ", for the " + s.Policy.Doze.String() + " of doze-minutes"
	}
	return fmt.Sprintf("Dozing: %s; hibernates at %s",
		reason, s.View.DozingSince.Add(s.Policy.Threshold-s.Policy.Doze).UTC().Format(time.RFC3339))
}

// putToSleep returns the Event's message.
func putToSleep(v kubernetes.View, done attempt) string {
	ended := strconv.Itoa(done.ended)
	if done.unconfirmed != 0 {
		ended = fmt.Sprintf("at most %d", done.ended+done.unconfirmed)
	}
	return fmt.Sprintf("Put to sleep: %s; suspended ScheduledBackups: %d; ended sessions that do not count: %s", asleepReason(v, done), done.suspended, ended)
}

func (p *reporter) abort(ctx context.Context, s *Status, reason idle.Reason) {
	p.aborted = reason
	s.Decision.Action, s.Decision.Reason, s.Decision.Blockers = idle.ActionNone, reason, []idle.Reason{reason}
	attributes := []any{"reason", reason}
	switch {
	case reason == idle.ReasonActive, reason == idle.ReasonWaiting: // it was in use, or may have been, and may become idle again
		p.aborted = ""
		attributes = append(attributes, "sessions", s.Tally.ByState(), "lastUnseenClient", s.LastPeer)
	case s.Decision.ThresholdPassed:
		p.decided(ctx, *s)
	}
	p.logger.Info("the cluster is not put to sleep after all", attributes...)
}

func (p *reporter) withdrawal(ctx context.Context, s *Status, done *attempt, r sleep.Report) {
	what, why := "Hibernation", "the operator did not start to hibernate the cluster in time"
	if r.Doze {
		what, why = "The doze", "the instance manager does not stop PostgreSQL"
	}
	if r.Reason == idle.ReasonActive {
		why = "the database is in use after all"
		if done.ended+done.unconfirmed != 0 {
			p.withdrawn++
		}
	}
	p.logger.Info("sleep is withdrawn", "doze", r.Doze, "why", why)
	p.write(ctx, s.View, kubernetes.EventWarning, "SleepWithdrawn", what+" is withdrawn: "+why)
}
