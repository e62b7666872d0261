package control

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// quietPeriod is how long no session is held after a change of the Cluster's specification. The change may make the
// instance restart in place, with PostgreSQL's smart mode and no preStop hook: a session would delay that until the
// restart is noticed.
const quietPeriod = 10 * time.Second

// viewed handles a state of the Cluster from the watch.
func (l *Loop) viewed(ctx context.Context, v kubernetes.View) {
	changed := v.ResourceVersion != l.status.View.ResourceVersion
	if !l.setView(v) {
		return
	}
	if changed {
		l.parts.Monitor.SampleSoon()
	}
	l.advance(ctx, sleep.Viewed{View: l.status.sleepView(&l.pod)})
}

// annotated handles the result of an annotation that is no action of the machine, which must know the new
// resourceVersion all the same: the next patch requires it.
func (l *Loop) annotated(ctx context.Context, e annotated) {
	if e.key == contract.AnnotationKeepAwakeUntil {
		l.cluster.wroteKeepAwake(e)
	} else if l.cluster.recordedRestartFailed(e); e.err == nil {
		l.reporter.restartFailed(ctx, e.view)
	}
	if e.err != nil {
		l.run(ctx, l.cluster.watchRestart(ctx, l.machine.Phase() == sleep.Restarting, l.status.View))
	} else if l.setView(e.view) {
		l.advance(ctx, sleep.Viewed{View: l.status.sleepView(&l.pod)})
	}
}

// setView records a state of the Cluster unless it is older than the known one, and reports whether it did: an answer
// may overtake the watch.
func (l *Loop) setView(v kubernetes.View) (ok bool) {
	if l.status.ViewKnown && v.Before(l.status.View) {
		return false
	}
	if l.status.ViewKnown && l.status.View.Generation != v.Generation {
		l.status.quietUntil = time.Now().Add(quietPeriod)
		l.pod.ends.end(sleep.Prepare)
	}
	if !l.status.ViewKnown {
		l.pod.endGuard()
		l.pod.restartPending = restartPending(v, l.parts.Pod, l.parts.Instance)
		if l.parts.Readiness != nil && !v.Fenced && !v.Dozing && (v.DozingSince.IsZero() || v.ForeignMarks) && v.Annotations[contract.AnnotationAnnounced] == "" {
			l.pod.restoreReadiness() // an earlier process may have withdrawn it, or the supervisor has just started
		}
	}
	l.status.View, l.status.ViewKnown = v, true
	l.status.served.note(v, l.parts.Pod)
	l.parse(time.Now())
	if v.CurrentPrimary == l.parts.Pod {
		l.pod.resize(v)
	}
	return true
}

// parse parses the annotations. A keep-awake request over the channel applies before it is written there.
func (l *Loop) parse(now time.Time) {
	l.status.Policy, l.status.Problems = idle.ParsePolicy(annotations(l.status.View, now), now)
	l.cluster.keepAwake.apply(&l.status.Policy)
	l.parts.Monitor.Configure(l.status.settings())
	var asleep *activity.Rules
	if v := l.status.View; v.Hibernating && v.Ours && !v.Dozing {
		rules := l.parts.Monitor.Rules()
		asleep = &rules
	}
	l.sessions.asleep.Store(asleep)
}

// step samples once, decides, and acts on the decision.
func (l *Loop) step(ctx context.Context) {
	before := l.status.Decision.Reason
	l.parse(time.Now())
	l.run(ctx, l.cluster.recheckBackups())
	observation := l.sample(ctx)
	l.run(ctx, l.cluster.persistKeepAwake(l.status.View)) // after the sample, which takes in what is requested meanwhile
	l.decide(observation, time.Now())
	if l.status.Decision.Action == idle.ActionAsk && (!l.machine.Phase().Attempting() || l.status.Policy.Observed) {
		observation.Elsewhere = elsewhere(ask(ctx, l.parts.Siblings, l.status.View, l.parts.Pod, false), l.status.Rules(), time.Now(), l.parts.Logger)
		l.decide(observation, time.Now())
	}
	l.count(ctx, observation)
	l.advance(ctx, l.status.observed())
	l.status.postpone(l.machine, l.reporter.aborted)
	if reason := l.status.Decision.Reason; reason != before {
		l.parts.Logger.Info("the decision has changed", "reason", reason, "before", before)
	}
	l.reporter.decided(ctx, l.status)
	l.due = cmp.Or(idle.UnderstoodFrom(l.status.Problems), l.status.Decision.Next)
	if l.doze.archiver != "" && time.Now().Before(l.doze.archiverNext) {
		l.due = earliest(l.due, l.doze.archiverNext)
	}
	l.parts.Monitor.Checkpoint(l.status.State)
	l.parts.Observer.Publish(l.status)
}

// decide decides on an observation, together with what the Cluster and its Backups say.
func (l *Loop) decide(observation idle.Observation, now time.Time) {
	proven := l.status.State
	observation.Blockers = slices.Concat(observation.Blockers, l.status.View.Blockers(l.parts.Pod))
	if l.cluster.backups.running {
		observation.Blockers = append(observation.Blockers, idle.ReasonBackupRunning)
	}
	wake, _ := contract.ParseLastWake(l.status.View.Annotations[contract.AnnotationLastWake]) // zero without one
	if l.status.Returning = returning(wake, l.reporter.withdrawn, l.status.Tally.Terminable()); l.status.Returning != (activity.Terminable{}) {
		observation.Blockers = append(observation.Blockers, idle.ReasonClientsReturn)
	}
	blockDoze := func(reason idle.Reason, holds bool) {
		if holds {
			observation.DozeBlockers = append(observation.DozeBlockers, reason)
		}
	}
	blockDoze(idle.ReasonPodMadeBefore, l.parts.Readiness == nil)
	blockDoze(idle.ReasonSwitchoverDelay, l.status.View.ShortSwitchoverDelay)
	blockDoze(idle.ReasonFenced, l.status.View.FenceApplied)
	sameIdle := l.doze.archiverIdle.Equal(l.status.State.IdleSince)
	blockDoze(l.doze.archiver, l.doze.archiver != "" && sameIdle && now.Before(l.doze.archiverNext))
	blockDoze(idle.ReasonLoginsUnseen, l.status.Unsupported)
	blockDoze(idle.ReasonGrowthPending, l.parts.Requests != nil && l.parts.Requests.GrowthPending())
	l.status.State, l.status.Decision = idle.Decide(l.status.Policy, len(l.status.Problems) != 0, l.status.State, observation, now)
	l.status.DecidedAt, l.status.InUse = now, len(observation.InUse) != 0
	_, byHand := l.status.View.Annotations[contract.AnnotationAsleepSince]
	first := proven.SampledUntil.IsZero() && !observation.Unknown && !wake.At.IsZero() && !byHand
	if first || !later(proven.Unused, proven.Undecided).IsZero() {
		l.status.logUse(observation, l.parts.Logger)
	}
}

// dozeState is what a decision needs to know about the current doze, or about the last attempt to doze.
type dozeState struct {
	// fenced says that PostgreSQL is stopped for a doze, or may be: it cannot be sampled.
	fenced bool
	// specification is that of the Cluster at the last sample before it was fenced, or "" in another pod, and retry is
	// when hibernation is tried again.
	specification string
	retry         time.Time
	// archiver is the blocker that the last preparation found, or "", and archiverIdle is since when the cluster had been
	// idle at that time. Each preparation costs a checkpoint and a WAL file, so the next one waits until the cluster has
	// been idle for as long again.
	archiver                   idle.Reason
	archiverIdle, archiverNext time.Time
}

// prepared records the result of a preparation.
func (d *dozeState) prepared(reason idle.Reason, since time.Time) {
	d.archiver, d.archiverIdle, d.archiverNext = reason, since, time.Now().Add(time.Since(since))
}

// hibernatesAt returns when the dozing cluster is to hibernate: after the threshold, or at once if that was requested,
// or if its pod or anything of which the operator makes instances has changed. Otherwise the operator would restart
// PostgreSQL under the client that wakes the cluster, or would wait for a new pod that the fence keeps unready.
func (d *dozeState) hibernatesAt(phase sleep.Phase, s *Status, clock *apiClock) time.Time {
	v, policy := s.View, s.Policy
	if phase != sleep.Dozing {
		return time.Time{}
	}
	at := v.DozingSince.Add(policy.Threshold - policy.Doze)
	if s.requestedDozing() || specification(v) != d.specification {
		at = v.DozingSince
	}
	return later(clock.here(at), d.retry)
}

// hibernateRetry is the wait after a failed attempt to hibernate a cluster that dozes.
const hibernateRetry = 30 * time.Second
