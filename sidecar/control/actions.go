package control

import (
	"context"
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/fence"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// beginAction starts an action that is answered later, and reports whether the action is of that kind.
func (l *Loop) beginAction(ctx context.Context, a sleep.Action) (ok bool) {
	client, view := l.parts.Kubernetes, l.status.View
	switch a {
	case sleep.ListBackups:
		l.begin(ctx, func(ctx context.Context) func() {
			names, err := client.RunningBackups(ctx)
			return func() { l.listedBackups(ctx, names, err) }
		})
	case sleep.Announce:
		l.attempt, l.doze.fencedPostmaster = attempt{began: time.Now()}, fence.Postmaster{}
		text := contract.Announcement{
			PodUID: l.parts.PodUID, Deadline: l.attempt.began.Add(contract.AnnouncementLifetime), Doze: l.machine.ToDoze(),
		}.String()
		l.patch(ctx, sleep.Completed{Action: a, Announcement: text}, func(ctx context.Context) (kubernetes.View, error) {
			return client.Annotate(ctx, view, contract.AnnotationAnnounced, &text)
		})
	case sleep.Suspend:
		l.begin(ctx, func(ctx context.Context) func() {
			count, err := client.SuspendBackups(ctx, time.Now())
			return func() {
				l.attempt.suspended = count
				l.completed(ctx, sleep.Completed{Action: a}, err)
			}
		})
	case sleep.Resume:
		l.begin(ctx, func(ctx context.Context) func() {
			resumed, err := client.ResumeBackups(ctx)
			return func() { l.resumedBackups(ctx, resumed, err) }
		})
	case sleep.AskSiblings:
		l.begin(ctx, func(ctx context.Context) func() {
			answers := ask(ctx, view, l.parts.Pod, l.parts.Siblings.Sample)
			return func() { l.askedSiblings(ctx, answers) }
		})
	case sleep.ReadCluster:
		l.patch(ctx, sleep.Completed{Action: a}, client.Get)
	case sleep.Hibernate:
		l.attempt.judged = l.status.State
		reason := asleepReason(l.status.View, l.attempt.judged)
		l.patch(ctx, sleep.Completed{Action: a}, func(ctx context.Context) (kubernetes.View, error) {
			return client.Hibernate(ctx, view, time.Now(), reason)
		})
	case sleep.RemoveAnnouncement:
		l.patch(ctx, sleep.Completed{Action: a}, func(ctx context.Context) (kubernetes.View, error) {
			return client.RemoveAnnouncement(ctx, view)
		})
	case sleep.Withdraw:
		l.patch(ctx, sleep.Completed{Action: a}, func(ctx context.Context) (kubernetes.View, error) { return client.Withdraw(ctx, view) })
	default:
		return l.beginDoze(ctx, a)
	}
	return true
}

// patch starts a request that the API server answers with the Cluster.
func (l *Loop) patch(ctx context.Context, c sleep.Completed, send func(context.Context) (kubernetes.View, error)) {
	l.begin(ctx, func(ctx context.Context) func() {
		v, err := send(ctx)
		return func() {
			if err == nil {
				l.setView(v)
				c.View = l.sleepView() // the watch may have brought a newer one
			}
			l.completed(ctx, c, err)
		}
	})
}

// completed passes the result of an action to the machine.
func (l *Loop) completed(ctx context.Context, c sleep.Completed, err error) {
	if c.Outcome = outcome(err); c.Outcome != sleep.Done && ctx.Err() == nil {
		l.parts.Logger.Warn("an action did not succeed", "action", c.Action.String(), "outcome", c.Outcome.String(), "error", err.Error())
	}
	l.advance(ctx, c)
}

// outcome returns what an error of the API server means for the request.
func outcome(err error) sleep.Outcome {
	var refused *kubernetes.RefusedError
	switch {
	case err == nil:
		return sleep.Done
	case errors.Is(err, kubernetes.ErrConflict):
		return sleep.Conflict
	case errors.As(err, &refused):
		return sleep.Refused
	default:
		return sleep.Lost
	}
}

// carryOut carries out an action that is local to this instance.
func (l *Loop) carryOut(ctx context.Context, a sleep.Action) {
	switch a {
	case sleep.EndSessions:
		l.endSessions(ctx)
	case sleep.LeaveMarker:
		if err := l.parts.Marker.Leave(); err != nil {
			l.parts.Logger.Warn("PostgreSQL will not wait for the nodes before it shuts down", "error", err.Error())
		}
	case sleep.RemoveMarker:
		if err := l.parts.Marker.Remove(); err != nil {
			l.parts.Logger.Warn("the next end of the pod may take two seconds longer", "error", err.Error())
		}
	case sleep.RestoreReadiness:
		l.restoreReadiness()
	case sleep.CancelWait:
		l.doze.cancel()
	case sleep.Observe:
		l.parts.Monitor.SampleSoon()
	default: // beginAction has started the others
	}
}

func (l *Loop) listedBackups(ctx context.Context, names []string, err error) {
	c := sleep.Completed{Action: sleep.ListBackups}
	if err == nil {
		l.backups.set(len(names) != 0)
		if l.backups.running {
			c.Blocker = idle.ReasonBackupRunning
		}
	}
	l.completed(ctx, c, err)
}

func (l *Loop) resumedBackups(ctx context.Context, resumed kubernetes.Resumed, err error) {
	if resumed.Changed != 0 {
		l.parts.Logger.Info("the ScheduledBackups are resumed", "resumed", resumed.Changed-len(resumed.Left), "left", resumed.Left)
		l.recorder.resumed(ctx, l.status.View, resumed)
	}
	l.completed(ctx, sleep.Completed{Action: sleep.Resume}, err)
}

func (l *Loop) askedSiblings(ctx context.Context, answers []siblings.Answer) {
	l.attempt.siblings, l.attempt.answered = answers, time.Now()
	all := elsewhere(answers, l.status.Rules(l.parts.Pod), time.Now(), l.parts.Logger)
	l.advance(ctx, sleep.Completed{Action: sleep.AskSiblings, InUse: all.Active, Blocker: all.Reason()})
}

// maxSiblingAnswerAge is the maximum age of the other instances' answers at the last sample of this one.
const maxSiblingAnswerAge = 2 * time.Second

// directQuietPeriod is how long there must have been no direct session before the instance is fenced: a node may still route clients
// here, since kube-proxy applies changes once a second (iptables.minSyncPeriod), and may be late.
const directQuietPeriod = 2 * time.Second

// lastSample samples this instance before the hibernation patch, or while hibernation is on.
func (l *Loop) lastSample(ctx context.Context) {
	c := sleep.Completed{Action: sleep.Sample}
	if l.machine.Phase() == sleep.HibernationOn {
		sample, err := l.parts.Monitor.SampleOnce(ctx) // a failed sample shows no use
		c.InUse = err == nil && sample.Tally.HasClients()
		l.advance(ctx, c)
		return
	}
	c.Blocker = l.decideLast(ctx)
	c.InUse = l.status.InUse
	l.parts.Monitor.Checkpoint(l.status.State)
	l.parts.Observer.Publish(l.status)
	for l.expire(ctx) { // after a long sample, the announcement may have expired
	}
	l.advance(ctx, c)
}

// decideLast takes the last sample before the hibernation patch or the fence, and returns the blocker, or "".
func (l *Loop) decideLast(ctx context.Context) idle.Reason {
	if err := l.ender.prepare(ctx); err != nil { // before the sample, so that nothing happens between it and the hibernation patch
		l.parts.Logger.Warn("the sessions that do not count could not be ended later", "error", err.Error())
		return idle.ReasonUnknown
	}
	observation := l.sample(ctx)
	observation.Elsewhere = elsewhere(l.attempt.siblings, l.status.Rules(l.parts.Pod), time.Now(), l.parts.Logger)
	l.decide(observation, time.Now())
	switch {
	case l.machine.ToDoze() && (!l.parts.Readiness.Held() || !l.status.Reported): // somebody may have connected directly meanwhile
		return idle.ReasonUnknown
	case l.machine.ToDoze() && time.Since(l.status.LastDirect) < directQuietPeriod:
		return idle.ReasonConnecting
	case l.status.Decision.Action == idle.ActionNone || l.status.Decision.Action == idle.ActionAsk:
		return l.status.Decision.Reason
	case l.siblingCount() != 0 && time.Since(l.attempt.answered) > maxSiblingAnswerAge:
		return idle.ReasonSiblingUnknown
	case l.ender.prepare(ctx) != nil: // for sessions that only this sample found
		return idle.ReasonUnknown
	case l.machine.ToDoze() && !l.endJudged(ctx): // one of them is in use, and the fence would cut it
		return idle.ReasonUnknown
	default:
		return ""
	}
}

// asleepReason says why the cluster hibernates.
func asleepReason(v kubernetes.View, judged idle.State) string {
	if v.Dozing {
		return "dozing since " + v.DozingSince.UTC().Format(time.RFC3339)
	}
	if !judged.Unused.IsZero() {
		return contract.AsleepReasonUnusedPrefix + "it was woken at " + judged.Unused.UTC().Format(time.RFC3339)
	}
	return "idle since " + judged.IdleSince.UTC().Format(time.RFC3339)
}
