package control

import (
	"context"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

const (
	// quietPeriod is how long no session is held after a change of the Cluster's specification. The change may make the instance
	// restart in place, with PostgreSQL's smart mode and no preStop hook: a session would delay that until the restart is
	// noticed.
	quietPeriod = 10 * time.Second
	// backupsInterval is how often the Backups are listed while only a Backup keeps the cluster awake.
	backupsInterval = 10 * time.Second
)

// viewed handles a state of the Cluster from the watch.
func (l *Loop) viewed(ctx context.Context, v kubernetes.View) {
	changed := v.ResourceVersion != l.status.View.ResourceVersion
	if !l.setView(v) {
		return
	}
	if changed {
		l.parts.Monitor.SampleSoon()
	}
	l.advance(ctx, sleep.Viewed{View: l.status.sleepView(l.parts.PodUID, l.doze.restartPending)})
}

// adopt handles the answer to a patch that is no action of the machine: the next patch requires its resourceVersion, so that the
// machine must know its content.
func (l *Loop) adopt(ctx context.Context, v kubernetes.View) {
	if l.setView(v) {
		l.advance(ctx, sleep.Viewed{View: l.status.sleepView(l.parts.PodUID, l.doze.restartPending)})
	}
}

// setView records a state of the Cluster unless it is older than the known one, and reports whether it did: an answer may
// overtake the watch.
func (l *Loop) setView(v kubernetes.View) (ok bool) {
	if l.status.ViewKnown && v.Before(l.status.View) {
		return false
	}
	if l.status.ViewKnown && l.status.View.Generation != v.Generation {
		l.quietUntil = time.Now().Add(quietPeriod)
		l.preparation.cancel()
	}
	if !l.status.ViewKnown {
		l.doze.endGuard()
		l.doze.restartPending = restartPending(v, l.parts.Pod, l.parts.Instance)
		if l.parts.Readiness != nil && !v.Fenced && !v.Dozing && (v.DozingSince.IsZero() || v.ForeignMarks) && v.Annotations[contract.AnnotationAnnounced] == "" {
			l.readiness.restore() // an earlier process may have withdrawn it, or the supervisor has just started
		}
	}
	l.status.View, l.status.ViewKnown = v, true
	l.served.note(v, l.parts.Pod)
	l.parse(time.Now())
	if l.parts.Requests != nil && v.CurrentPrimary == l.parts.Pod {
		l.doze.resize(l.parts.Requests, v, l.parts.PodUID)
	}
	return true
}

// parse parses the annotations. A keep-awake request over the channel applies before it is written there.
func (l *Loop) parse(now time.Time) {
	l.status.Policy, l.status.Problems = idle.ParsePolicy(annotations(l.status.View, now), now)
	l.keepAwake.apply(&l.status.Policy)
	l.parts.Monitor.Configure(l.status.settings(l.quietUntil))
	var asleep *activity.Rules
	if v := l.status.View; v.Hibernating && v.Ours && !v.Dozing {
		rules := l.parts.Monitor.Rules()
		asleep = &rules
	}
	l.asleep.Store(asleep)
}

// step samples once, decides, and acts on the decision.
func (l *Loop) step(ctx context.Context) {
	l.parse(time.Now())
	l.persistKeepAwake(ctx)
	l.recheckBackups(ctx)
	observation := l.sample(ctx)
	l.decide(observation, time.Now())
	if l.status.Decision.Action == idle.ActionAsk && l.machine.Phase() == sleep.Awake {
		observation.Elsewhere = elsewhere(ask(ctx, l.parts.Siblings, l.status.View, l.parts.Pod, false), l.status.Rules(), time.Now(), l.parts.Logger)
		l.decide(observation, time.Now())
	}
	l.advance(ctx, l.status.observed())
	l.postpone()
	l.recorder.decided(ctx, l.status)
	l.schedule()
	l.parts.Monitor.Checkpoint(l.status.State)
	l.parts.Observer.Publish(l.status)
}

// decide decides on an observation, together with what the Cluster and its Backups say.
func (l *Loop) decide(observation idle.Observation, now time.Time) {
	before, proven := l.status.Decision.Reason, l.status.State
	observation.Blockers = slices.Concat(observation.Blockers, l.status.View.Blockers(l.parts.Pod))
	if l.backups.running {
		observation.Blockers = append(observation.Blockers, idle.ReasonBackupRunning)
	}
	wake, _ := contract.ParseLastWake(l.status.View.Annotations[contract.AnnotationLastWake]) // zero without one
	if l.status.Returning = returning(wake, l.reporter.withdrawn, l.status.Tally.Terminable()); l.status.Returning != (activity.Terminable{}) {
		observation.Blockers = append(observation.Blockers, idle.ReasonClientsReturn)
	}
	observation.Siblings, observation.Woken = l.status.siblingCount(), l.status.wokenAt(l.served.replaced)
	if l.parts.Readiness == nil {
		observation.DozeBlockers = append(observation.DozeBlockers, idle.ReasonPodMadeBefore)
	}
	if l.status.View.ShortSwitchoverDelay {
		observation.DozeBlockers = append(observation.DozeBlockers, idle.ReasonSwitchoverDelay)
	}
	if l.status.View.FenceApplied {
		observation.DozeBlockers = append(observation.DozeBlockers, idle.ReasonFenced)
	}
	if l.doze.archiver != "" && l.doze.archiverIdle.Equal(l.status.State.IdleSince) && now.Before(l.doze.archiverNext) {
		observation.DozeBlockers = append(observation.DozeBlockers, l.doze.archiver)
	}
	if l.status.Unsupported {
		observation.DozeBlockers = append(observation.DozeBlockers, idle.ReasonLoginsUnseen)
	}
	if l.parts.Requests != nil && l.parts.Requests.GrowthPending() {
		observation.DozeBlockers = append(observation.DozeBlockers, idle.ReasonGrowthPending)
	}
	l.status.State, l.status.Decision = idle.Decide(l.status.Policy, len(l.status.Problems) != 0, l.status.State, observation, now)
	l.status.DecidedAt, l.status.InUse = now, len(observation.InUse) != 0
	_, byHand := l.status.View.Annotations[contract.AnnotationAsleepSince]
	first := proven.SampledUntil.IsZero() && !observation.Unknown && !wake.At.IsZero() && !byHand
	if first || !later(proven.Unused, proven.Undecided).IsZero() {
		l.logUse(observation)
	}
	if reason := l.status.Decision.Reason; reason != before && l.status.Decision.Action != idle.ActionAsk {
		l.parts.Logger.Info("the decision has changed", "reason", reason, "before", before)
	}
}

// logUse logs why the wake does not count as unused.
func (l *Loop) logUse(seen idle.Observation) {
	if state := l.status.State; later(state.Unused, state.Undecided).IsZero() {
		l.parts.Logger.Info("the wake counts as used", "woken", seen.Woken, "lastActivity", state.LastActivity, "peer", l.status.LastPeer,
			"reported", seen.Reported, "gap", seen.Gap, "sessionMissed", l.status.SessionMissed, "elsewhere", seen.Elsewhere.Used)
	}
}

// schedule plans the next sample.
func (l *Loop) schedule() {
	l.due = l.status.Decision.Next
	if from := idle.UnderstoodFrom(l.status.Problems); !from.IsZero() {
		l.due = from
	}
	if l.doze.archiver != "" && time.Now().Before(l.doze.archiverNext) {
		l.due = earliest(l.due, l.doze.archiverNext)
	}
	if l.keepAwake.pending && !l.keepAwake.writing && l.status.View.CurrentPrimary == l.parts.Pod {
		l.due = earliest(l.due, l.keepAwake.next)
	}
}

// backups records whether a Backup was running.
type backups struct {
	running bool
	next    time.Time // when they are listed again
}

// set records whether one is running.
func (b *backups) set(running bool) {
	*b = backups{running: running, next: time.Now().Add(backupsInterval)}
}

// recheckBackups lists the Backups again while one of them keeps the cluster awake. While the list fails, the Backup counts as
// running.
func (l *Loop) recheckBackups(ctx context.Context) {
	if now := time.Now(); !l.backups.running || now.Before(l.backups.next) {
		return
	}
	l.backups.set(true)
	l.begin(ctx, func(ctx context.Context) func() {
		names, err := l.parts.Kubernetes.RunningBackups(ctx)
		return func() {
			l.backups.set(err != nil || len(names) != 0)
			if !l.backups.running {
				l.parts.Monitor.SampleSoon()
			}
		}
	})
}
