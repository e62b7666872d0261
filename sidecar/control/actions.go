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

// order is an action to carry out, with what the loop knew when the machine requested it.
type order struct {
	action   sleep.Action
	view     kubernetes.View
	text     string          // the announcement, or why the cluster hibernates
	at       time.Time       // when it is requested
	counts   string          // of the sleeps until then
	archiver bool            // ListBackups asks for the archiver too
	fenced   doze.Postmaster // the postmaster that may have been fenced
}

// completed is the result of an action.
type completed struct {
	sleep.Completed
	err     error
	view    kubernetes.View    // for ReadCluster and the patches of the Cluster
	count   int                // running Backups, or suspended schedules
	resumed kubernetes.Resumed // schedules
	answers []siblingAnswer
}

// start starts an action.
func (l *Loop) start(ctx context.Context, a sleep.Action) {
	o := order{action: a, view: l.status.View, at: time.Now()}
	switch a {
	case sleep.Observe:
		l.parts.Monitor.SampleSoon()
		return
	case sleep.ListBackups: // a doze asks when it prepares PostgreSQL; the operator's stop waits for the archiver too
		hibernates := l.machine.Phase() == sleep.ListingBackups && !l.machine.ToDoze()
		o.archiver = hibernates && !o.view.Dozing && !l.parts.Monitor.Drained()
	case sleep.Announce:
		l.attempt, l.pod.postmaster = attempt{began: time.Now()}, doze.Postmaster{}
		o.text = contract.Announcement{
			PodUID:   l.parts.PodUID,
			Deadline: l.cluster.clock.at(l.attempt.began).Add(contract.AnnouncementLifetime), Doze: l.machine.ToDoze(),
		}.String()
	case sleep.Hibernate:
		l.attempt.judged, l.attempt.cause = l.status.State, l.status.cause(l.doze.specification)
		l.attempt.ignored = wokenInVain(o.view, l.attempt.judged, l.sessions.judged)
		o.at = l.cluster.clock.at(o.at) // the plugin compares it with its own clock
		o.text, o.counts = asleepReason(o.view, l.attempt), l.counts.text(o.at)
	case sleep.Fence:
		l.attempt.judged = l.status.State
		o.at = l.cluster.clock.at(o.at) // as for hibernation
		l.pod.notePostmaster()
	default: // the view is all that the others need
	}
	if a&inPod != 0 {
		l.run(ctx, l.pod.start(ctx, o))
	} else {
		l.run(ctx, func(ctx context.Context) event { return l.cluster.do(ctx, o) })
	}
}

// completed passes the result of an action to the machine.
func (l *Loop) completed(ctx context.Context, e completed) {
	switch e.Action {
	case sleep.ListBackups:
		if e.err == nil {
			l.cluster.backups.set(e.count != 0)
		}
		if e.err == nil && e.count != 0 {
			e.Blocker = idle.ReasonBackupRunning
		}
	case sleep.Suspend:
		l.attempt.suspended = e.count
	case sleep.Resume:
		l.reporter.resumed(ctx, l.status.View, e.resumed)
	case sleep.AskSiblings:
		l.attempt.siblings, l.attempt.answered = e.answers, time.Now()
		all := elsewhere(e.answers, l.status.Rules(), time.Now(), l.parts.Logger)
		e.InUse, e.Blocker = all.Active, all.Reason()
	case sleep.Prepare:
		if e.err == nil {
			l.doze.prepared(e.Blocker, l.status.State.IdleSince)
		}
	case sleep.AwaitStop, sleep.AwaitServing:
		if !l.pod.ends.end(e.Action) { // CancelWait was first
			e.Outcome, e.err = sleep.Refused, nil
		} else if e.err == nil { // a postmaster that runs from now on is not the fenced one
			l.pod.postmaster, l.pod.restartPending = doze.Postmaster{}, false
		}
	default: // the others change nothing else
	}
	if e.err == nil && e.Action&answeredWithCluster != 0 {
		l.setView(e.view)
		e.View = l.status.sleepView(&l.pod) // the watch may have brought a newer one
		if e.Action == sleep.Announce && l.cluster.clock.learn(e.view.WrittenAt, l.attempt.began, l.parts.Logger) {
			e.Blocker = idle.ReasonGatewayUnavailable // its deadline is wrong, and the next one is not
		}
	}
	if e.err != nil {
		if e.Outcome = outcome(e.err); ctx.Err() == nil {
			l.parts.Logger.Warn("an action did not succeed",
				"action", e.Action.String(), "outcome", e.Outcome.String(), "error", e.err.Error())
		}
	}
	l.advance(ctx, e.Completed)
}

// outcome returns what an error of the API server means for the request.
func outcome(err error) sleep.Outcome {
	var refused *kubernetes.RefusedError
	switch {
	case errors.Is(err, kubernetes.ErrConflict):
		return sleep.Conflict
	case errors.As(err, &refused):
		return sleep.Refused
	default:
		return sleep.Lost
	}
}

// maxSiblingAnswerAge is the maximum age of the other instances' answers at the last sample of this one.
const maxSiblingAnswerAge = 2 * time.Second

// directQuietPeriod is how long there must have been no direct session before the instance is fenced. A node may still
// route clients here, because kube-proxy applies changes once a second (iptables.minSyncPeriod), and may be late.
const directQuietPeriod = 2 * time.Second

// lastSample samples this instance before the hibernation patch or the fence, or while hibernation is on.
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
	for timer, ok := l.timers.expired(time.Now()); ok; timer, ok = l.timers.expired(time.Now()) {
		l.advance(ctx, sleep.Timeout{Timer: timer}) // after a long sample, the announcement may have expired
	}
	l.advance(ctx, c)
}

// decideLast takes the last sample before the hibernation patch or the fence, and returns the blocker, or "".
func (l *Loop) decideLast(ctx context.Context) idle.Reason {
	if err := l.sessions.prepare(ctx); err != nil { // before the sample, so that nothing happens between it and the hibernation patch
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
	case l.sessions.prepare(ctx) != nil: // for sessions that only this sample found
		return idle.ReasonUnknown
	case l.machine.ToDoze() && !l.sessions.endAll(ctx, &l.attempt): // one of them is in use, and the fence would cut it
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
	return idleReason(done)
}

// idleReason says why a cluster that is awake falls asleep.
func idleReason(done attempt) string {
	if done.judged.Unused.IsZero() {
		return "idle since " + done.judged.IdleSince.UTC().Format(time.RFC3339) + done.cause
	}
	reason := contract.AsleepReasonUnusedPrefix + "it was woken at " + done.judged.Unused.UTC().Format(time.RFC3339)
	if done.ignored != (activity.Terminable{}) {
		reason += contract.AsleepReasonIgnoredSuffix
	}
	return reason
}

// wokenInVain returns the ignored session of the client that woke the cluster if nobody has used it since; zero if
// there is none.
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
