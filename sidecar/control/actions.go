package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// beginAction starts an action that is answered later, and reports whether the action is of that kind.
func (l *Loop) beginAction(ctx context.Context, a sleep.Action) (ok bool) {
	client, view := l.parts.Kubernetes, l.status.View
	switch a {
	case sleep.ListBackups:
		asks := l.machine.Phase() == sleep.ListingBackups && !l.machine.ToDoze() && !view.Dozing && !l.parts.Monitor.Drained()
		l.begin(ctx, func(ctx context.Context) func() {
			names, err := client.RunningBackups(ctx)
			var archiver idle.Reason
			if asks && err == nil { // a doze asks when it prepares PostgreSQL; the operator's stop waits for the archiver too
				archiver, err = l.parts.Instance.Archiver(ctx)
			}
			return func() { l.listedBackups(ctx, names, archiver, err) }
		})
	case sleep.Announce:
		l.attempt, l.doze.fencedPostmaster = attempt{began: time.Now()}, doze.Postmaster{}
		text := contract.Announcement{
			PodUID: l.parts.PodUID, Deadline: l.clock.at(l.attempt.began).Add(contract.AnnouncementLifetime), Doze: l.machine.ToDoze(),
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
			answers := ask(ctx, l.parts.Siblings, view, l.parts.Pod, true)
			return func() { l.askedSiblings(ctx, answers) }
		})
	case sleep.ReadCluster:
		l.patch(ctx, sleep.Completed{Action: a}, client.Get)
	case sleep.Hibernate:
		l.attempt.judged, l.attempt.cause = l.status.State, l.status.cause(l.doze.specification)
		l.attempt.ignored = wokenInVain(l.status.View, l.attempt.judged, l.ender.judged)
		reason := asleepReason(view, l.attempt)
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
				c.View = l.status.sleepView(l.parts.PodUID, l.doze.restartPending) // the watch may have brought a newer one
				if c.Action == sleep.Announce && l.clock.learn(v.WrittenAt, l.attempt.began, l.parts.Logger) {
					c.Blocker = idle.ReasonGatewayUnavailable // its deadline is wrong, and the next one is not
				}
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
func (l *Loop) carryOut(a sleep.Action) {
	switch a {
	case sleep.LeaveMarker:
		if err := l.parts.Marker.Leave(); err != nil {
			l.parts.Logger.Warn("PostgreSQL will not wait for the nodes before it shuts down", "error", err.Error())
		}
	case sleep.RemoveMarker:
		if err := l.parts.Marker.Remove(); err != nil {
			l.parts.Logger.Warn("the next end of the pod may take two seconds longer", "error", err.Error())
		}
	case sleep.RestoreReadiness:
		l.readiness.restore()
	case sleep.CancelWait:
		l.doze.cancel()
	case sleep.Observe:
		l.parts.Monitor.SampleSoon()
	default: // beginAction has started the others
	}
}

func (l *Loop) listedBackups(ctx context.Context, names []string, archiver idle.Reason, err error) {
	c := sleep.Completed{Action: sleep.ListBackups, Blocker: archiver}
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

func (l *Loop) askedSiblings(ctx context.Context, answers []siblingAnswer) {
	l.attempt.siblings, l.attempt.answered = answers, time.Now()
	all := elsewhere(answers, l.status.Rules(), time.Now(), l.parts.Logger)
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
		l.parts.Logger.Warn("cannot open the session that ends those that do not count", "error", err.Error())
		return idle.ReasonUnknown
	}
	observation := l.sample(ctx)
	observation.Elsewhere = elsewhere(l.attempt.siblings, l.status.Rules(), time.Now(), l.parts.Logger)
	l.decide(observation, time.Now())
	switch {
	case l.machine.ToDoze() && (!l.parts.Readiness.Held() || !l.status.Reported): // a client may have connected directly meanwhile
		return idle.ReasonUnknown
	case wallClockSince(l.attempt.began) > contract.AnnouncementLifetime: // the machine was suspended, and its timers with it
		return idle.ReasonGatewayUnavailable
	case l.machine.ToDoze() && time.Since(l.status.LastDirect) < directQuietPeriod:
		return idle.ReasonConnecting
	case l.status.Decision.Action == idle.ActionNone || l.status.Decision.Action == idle.ActionAsk:
		return l.status.Decision.Reason
	case l.status.siblingCount() != 0 && time.Since(l.attempt.answered) > maxSiblingAnswerAge:
		return idle.ReasonSiblingUnknown
	case l.ender.prepare(ctx) != nil: // for sessions that only this sample found
		return idle.ReasonUnknown
	case l.machine.ToDoze() && !l.ender.endAll(ctx, &l.attempt): // one of them is in use, and the fence would cut it
		return idle.ReasonUnknown
	default:
		return ""
	}
}

func wallClockSince(t time.Time) time.Duration { return time.Now().Round(0).Sub(t.Round(0)) }

// asleepReason says why the cluster hibernates.
func asleepReason(v kubernetes.View, done attempt) string {
	if v.Dozing {
		return "dozing since " + v.DozingSince.UTC().Format(time.RFC3339) + done.cause
	}
	if done.judged.Unused.IsZero() {
		return "idle since " + done.judged.IdleSince.UTC().Format(time.RFC3339) + done.cause
	}
	reason := contract.AsleepReasonUnusedPrefix + "it was woken at " + done.judged.Unused.UTC().Format(time.RFC3339)
	if done.ignored != (activity.Terminable{}) {
		reason += contract.AsleepReasonIgnoredSuffix
	}
	return reason
}

// wokenInVain returns the ignored session of the client that woke the cluster if nobody has used it since; zero if there is none.
func wokenInVain(v kubernetes.View, judged idle.State, sessions []activity.Terminable) activity.Terminable {
	wake, err := contract.ParseLastWake(v.Annotations[contract.AnnotationLastWake])
	if err != nil || judged.Unused.IsZero() {
		return activity.Terminable{}
	}
	at := slices.IndexFunc(sessions, func(s activity.Terminable) bool { return !s.Idle && s.Client.Unmap().String() == wake.By })
	if at < 0 {
		return activity.Terminable{}
	}
	return sessions[at]
}
