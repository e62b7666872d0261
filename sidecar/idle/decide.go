package idle

import (
	"slices"
	"time"
)

// How often an instance is sampled while the feature is on.
const (
	// RestInterval is for an instance whose ended TCP sessions are all reported: samples are only needed for what such
	// reports do not show.
	RestInterval = time.Minute
	// LocalInterval is for an instance with an open session over the Unix socket, whose end nothing reports; for one
	// with extensions that schedule jobs, which nothing reports either; and for one that could not be sampled.
	LocalInterval = 2 * time.Second
	// PollInterval is for an instance whose ended sessions are not reported: a session between two samples is not seen.
	PollInterval = time.Second
	// BlockedInterval is for a cluster that would sleep if not for a blocker that may end at any time.
	BlockedInterval = 30 * time.Second
	// AskInterval is for a cluster that would sleep if not for another instance.
	AskInterval = 10 * time.Second
)

const (
	// longestGap is the longest time between two samples without reports that still counts as observed. During a longer
	// gap, this process or its machine stood still, so anything may have happened.
	longestGap = 10 * time.Second
	// longestMinimum limits how long a cluster must be up before it is put to sleep on request.
	longestMinimum = 5 * time.Minute
	// unusedThreshold is the threshold after a wake that nobody has used.
	unusedThreshold = time.Minute
	// wokenWithin is how soon after the wake the first sample must be taken to count as observed from the beginning.
	wokenWithin = 5 * time.Minute
	// unwatchedAtMost is how long a woken server may have run before its first sample: sessions that do not come
	// through the gateway meanwhile are not known.
	unwatchedAtMost = time.Minute
	// unsampledAtMost is how far apart two samples of a woken server may be that prove together that nobody has used
	// it.
	unsampledAtMost = 2 * RestInterval
	// requestLasts is how long a request to sleep stays valid while something is in use.
	requestLasts = 10 * time.Minute
)

// Observation is the result of one sample of the instance and its Cluster, and of what was reported since the previous
// sample.
type Observation struct {
	// Began and Ended are the times of the sample; both are zero if the instance was not sampled.
	Began, Ended time.Time
	// Unknown says that the sample did not show whether the instance is in use.
	Unknown bool
	// InUse is why the instance is in use now; empty if it is not.
	InUse []Reason
	// Used is the time of the newest use that is over; zero if there was none since the previous sample.
	Used time.Time
	// Gap says that sessions may have gone unseen since the previous sample.
	Gap bool
	// Reported says that every TCP session is reported when it ends, so that samples may be rare.
	Reported bool
	// Local says that a session that counts is open whose end is not reported.
	Local bool
	// Scheduler says that a loaded extension runs jobs in background workers, which only a sample shows.
	Scheduler bool
	// Requested is the time of the newest request to sleep as soon as nothing is in use, or zero.
	Requested time.Time
	// Started is when the server started, and Checkpointed when its newest checkpoint began.
	Started, Checkpointed time.Time
	// Announced says that the gateway has announced a session that no sample has found yet, and whose end was not
	// reported.
	Announced bool
	// Woken is when the cluster was woken; zero if a person or a request woke it, if the primary has changed or a session
	// may have been missed since, or once an instance that has served since is gone.
	Woken time.Time
	// Siblings is the number of other instances, and Elsewhere their answers.
	Siblings  int
	Elsewhere Elsewhere
	// Blockers is what forbids sleep regardless of sessions, and DozeBlockers what forbids only a doze.
	Blockers, DozeBlockers []Reason
}

// Elsewhere is the result of asking the other instances.
type Elsewhere struct {
	// Asked says that they were asked for this decision.
	Asked bool
	// Unknown says that one did not answer, or does not know; Active that one is in use.
	Unknown, Active bool
	// Blockers are their servers' reasons against a shutdown.
	Blockers []Reason
	// IdleSince is since when all of them have been idle, if they are.
	IdleSince time.Time
	// Used says that one of them has been used since the wake, or may have been.
	Used bool
}

// Reason returns what the other instances say against sleep, or "".
func (e Elsewhere) Reason() Reason {
	switch {
	case e.Unknown:
		return ReasonSiblingUnknown
	case e.Active:
		return ReasonSiblingActive
	case len(e.Blockers) != 0:
		return e.Blockers[0]
	default:
		return ""
	}
}

// State is what is known from the samples so far. The zero value knows nothing.
type State struct {
	// IdleSince is since when the instance has been proven idle; zero while in use or unknown.
	IdleSince time.Time
	// Blocked says that the newest sample had a blocker whose end starts the clock.
	Blocked bool
	// EligibleSince is since when this instance has been the one that decides; zero while it is not.
	EligibleSince time.Time
	// ElsewhereSince is since when the other instances have been idle, as far as they were asked.
	ElsewhereSince time.Time
	// SampledUntil is the end of the newest successful sample.
	SampledUntil time.Time
	// LastActivity is the newest sign of use; zero if there was none.
	LastActivity time.Time
	// Requested is when sleep was requested; zero if it was not.
	Requested time.Time
	// KeptAwakeUntil is the policy's keep-awake-until at the newest sample, and CancelledAt is when that last became
	// later, which cancelled every request made before.
	KeptAwakeUntil, CancelledAt time.Time
	// Unused is when the cluster was woken, as long as every sample and event since proves that nobody has used it;
	// otherwise zero. It stays zero after a wake by a person or a request.
	Unused time.Time
	// Undecided is that time while Unused is withheld: a session that was announced may have come and gone before
	// anything could report it, or is still to begin.
	Undecided time.Time
}

// Action is what to do.
type Action int

// The actions.
const (
	// ActionNone changes nothing.
	ActionNone Action = iota
	// ActionAsk asks the other instances and decides again.
	ActionAsk
	// ActionDoze has the cluster doze.
	ActionDoze
	// ActionHibernate hibernates it.
	ActionHibernate
)

// Decision is what to do, why, and when to sample again.
type Decision struct {
	// Action is what to do now.
	Action Action
	// Reason is the first of the reasons that keep the cluster awake, or ReasonIdle.
	Reason Reason
	// Blockers are all reasons that keep the cluster awake, in the order of [Reasons].
	Blockers []Reason
	// DozeBlockers are all reasons why a cluster that is to doze hibernates instead, in the order of [Reasons].
	DozeBlockers []Reason
	// ThresholdPassed says that the cluster has been idle for the threshold after which it dozes, or hibernates if it
	// does not doze, so that only blockers keep it awake.
	ThresholdPassed bool
	// Due is when that threshold will have passed if nothing happens; zero while in use or unknown.
	Due time.Time
	// Next is when to sample again, always later than now; zero when only a change of the Cluster can change anything.
	Next time.Time
}

// Decide returns what to do after a sample. invalid says that the policy has problems.
func Decide(policy Policy, invalid bool, state State, seen Observation, now time.Time) (State, Decision) {
	inWindow, windowChange := policy.inWindow(now)
	blockers := blockersOf(policy, invalid, seen, now)
	if inWindow {
		blockers = append(blockers, ReasonKeepAwakeWindow)
	}
	state = state.after(policy, seen, eligible(blockers), now)
	clock, proven := state.clock(seen)
	dozeBlockers := dozeBlockersOf(policy, seen)
	threshold, hibernates := state.thresholds(policy, dozeBlockers)
	decision := Decision{Reason: ReasonIdle, DozeBlockers: dozeBlockers, ThresholdPassed: proven && seen.Began.Sub(clock) >= threshold}
	if proven {
		decision.Due = clock.Add(threshold)
	}
	asks := seen.Siblings > 0 && !seen.Elsewhere.Asked
	observes := policy.Observed && asks && proven && seen.Began.Sub(clock) >= Thresholds()[0]
	if !decision.ThresholdPassed && !seen.Unknown && len(seen.InUse) == 0 && !observes {
		if reason := waitingFor(policy, state, seen, proven); reason != "" {
			blockers = append(blockers, reason)
		}
	}
	slices.SortFunc(blockers, func(a, b Reason) int { return rank(a) - rank(b) })
	decision.Blockers = slices.Compact(blockers)
	switch {
	case observes: // whatever else keeps it awake, so that a sleep that has begun is counted for as long as it would last
		decision.Action, decision.Reason = ActionAsk, ReasonSiblingUnknown
	case len(decision.Blockers) != 0:
		decision.Reason = decision.Blockers[0]
	case asks:
		decision.Action, decision.Reason = ActionAsk, ReasonSiblingUnknown
		decision.Blockers = []Reason{ReasonSiblingUnknown}
	case policy.Observed:
		decision.Reason, decision.Blockers = ReasonObserved, []Reason{ReasonObserved}
	case seen.Began.Sub(clock) >= hibernates, waitingFor(policy, state, seen, proven) == "":
		decision.Action = ActionHibernate
	default:
		decision.Action = ActionDoze
	}
	if policy.Watches() && !invalid {
		changes := []time.Time{decision.Due, windowChange, policy.awakeUntil()}
		if proven {
			changes = append(changes, clock.Add(hibernates))
		}
		if !state.Requested.IsZero() {
			changes = append(changes, state.EligibleSince.Add(minimumUptime(policy)))
		}
		decision.Next = next(decision, seen, now, changes)
	}
	return state, decision
}

// clock returns since when nothing is in use on any instance, as far as is known, and whether this instance has proven
// it.
func (s State) clock(seen Observation) (since time.Time, proven bool) {
	since = latest(latest(s.IdleSince, s.EligibleSince), s.ElsewhereSince)
	return since, !s.IdleSince.IsZero() && !s.EligibleSince.IsZero() && !seen.Began.IsZero()
}

// dozeBlockersOf returns why a cluster that is to doze hibernates instead, sorted.
func dozeBlockersOf(policy Policy, seen Observation) []Reason {
	if policy.Doze == 0 {
		return nil
	}
	blockers := slices.Clone(seen.DozeBlockers)
	if seen.Siblings > 0 {
		blockers = append(blockers, ReasonStandbys)
	}
	if policy.Manual {
		blockers = append(blockers, ReasonWakeManual)
	}
	slices.SortFunc(blockers, func(a, b Reason) int { return rank(a) - rank(b) })
	return slices.Compact(blockers)
}

// waitingFor returns what the threshold, or a request to sleep at once, still has to wait for, or "".
func waitingFor(policy Policy, state State, seen Observation, proven bool) Reason {
	switch {
	case state.Requested.IsZero() || !proven:
		return ReasonWaiting
	case seen.Began.Sub(state.EligibleSince) < minimumUptime(policy):
		return ReasonMinimumUptime
	default:
		return ""
	}
}

// thresholds returns how long the cluster must be idle before it sleeps, and before it hibernates; they differ if it
// dozes first. After an unused wake it sleeps after a minute at most. If only the pending growth of the requests
// prevents a doze, the cluster hibernates instead, so that its next pod is scheduled anew.
func (s State) thresholds(policy Policy, dozeBlockers []Reason) (sleeps, hibernates time.Duration) {
	sleeps, hibernates = policy.Threshold, policy.Threshold
	dozes := policy.Doze != 0 && len(dozeBlockers) == 0
	if dozes || slices.Equal(dozeBlockers, []Reason{ReasonGrowthPending}) {
		sleeps = policy.Doze
	}
	if !s.Unused.IsZero() {
		sleeps = min(sleeps, unusedThreshold)
	}
	if !dozes {
		hibernates = sleeps
	}
	return sleeps, hibernates
}

// minimumUptime returns how long a cluster must be up before it is put to sleep on request.
func minimumUptime(policy Policy) time.Duration { return min(policy.Threshold, longestMinimum) }

// next returns when to sample again: after the interval, or earlier if the passing of time alone may change the
// decision. A change during the sample requires another one at once.
func next(decision Decision, seen Observation, now time.Time, changes []time.Time) time.Time {
	at, begun := now.Add(interval(decision, seen)), seen.Began
	if begun.IsZero() {
		begun = now
	}
	for _, change := range changes {
		if change.After(begun) && change.Before(at) {
			at = latest(change, now.Add(time.Millisecond))
		}
	}
	return at
}

func interval(decision Decision, seen Observation) time.Duration {
	has := func(r Reason) bool { return slices.Contains(decision.Blockers, r) }
	switch {
	case seen.Unknown:
		return LocalInterval
	case !seen.Reported:
		return PollInterval
	case seen.Local, seen.Scheduler:
		return LocalInterval
	case has(ReasonSiblingActive), has(ReasonSiblingUnknown):
		return AskInterval
	case decision.ThresholdPassed && !has(ReasonKeepAwakeWindow) && !has(ReasonKeepAwakeUntil):
		return BlockedInterval
	default:
		return RestInterval
	}
}

// blockersOf returns what keeps the cluster awake, apart from the threshold and the windows.
func blockersOf(policy Policy, invalid bool, seen Observation, now time.Time) []Reason {
	blockers := slices.Concat(seen.Blockers, seen.InUse)
	if seen.Elsewhere.Asked {
		blockers = append(blockers, seen.Elsewhere.Blockers...)
	}
	for _, rule := range []struct {
		applies bool
		reason  Reason
	}{
		{invalid, ReasonInvalidAnnotation},
		{!invalid && !policy.Watches(), ReasonDisabled},
		{now.Before(policy.awakeUntil()), ReasonKeepAwakeUntil},
		{seen.Unknown, ReasonUnknown},
		{seen.Elsewhere.Asked && seen.Elsewhere.Unknown, ReasonSiblingUnknown},
		{seen.Elsewhere.Asked && seen.Elsewhere.Active, ReasonSiblingActive},
	} {
		if rule.applies {
			blockers = append(blockers, rule.reason)
		}
	}
	return blockers
}

// eligible reports whether this instance is the one that decides. When it becomes so, the clock restarts: a replica
// that is promoted has not had the clients that it is promoted for.
func eligible(blockers []Reason) bool {
	return !slices.ContainsFunc(blockers, func(r Reason) bool {
		switch r {
		case ReasonInvalidAnnotation, ReasonDisabled, ReasonPluginNotListed, ReasonAlreadyHibernating,
			ReasonNotPrimary, ReasonSwitchover, ReasonReplicaCluster:
			return true
		default:
			return false
		}
	})
}

// startsClock reports whether the clock starts when the blocker ends. It does for what the server does for a client,
// which may be between two tries: an ignored reader of a slot reconnects. Other blockers show no use: with the end of a
// Backup, a maintenance window, an unhealthy phase or a keep-awake window, a cluster that has been idle for the
// threshold may sleep at once.
func startsClock(r Reason) bool {
	switch r {
	case ReasonPreparedTransaction, ReasonAdvisoryLock, ReasonBaseBackup, ReasonProgress, ReasonSubscription,
		ReasonLogicalSlot:
		return true
	default:
		return false
	}
}

// after returns the state after one more sample.
func (s State) after(policy Policy, seen Observation, eligible bool, now time.Time) State {
	first := s.SampledUntil.IsZero() && !seen.Unknown
	tookOver := !first && eligible && s.EligibleSince.IsZero() // whether the former primary was used is not known
	// While a sample fails, ended TCP sessions are reported all the same. Sessions over the Unix socket are not.
	missed := !first && (seen.Gap || seen.Began.Sub(s.SampledUntil) > unsampledAtMost)
	blocked := slices.ContainsFunc(seen.Blockers, startsClock)
	switch {
	case seen.Unknown:
		s.IdleSince = time.Time{}
	case len(seen.InUse) != 0:
		s.IdleSince, s.LastActivity = time.Time{}, latest(s.LastActivity, seen.Ended)
	case s.IdleSince.IsZero() || seen.Ended.Before(s.IdleSince) || seen.unwatched(s.SampledUntil) || s.Blocked && !blocked:
		// Idleness begins here, or the machine's clock was set back, or the last sample is too old, or what blocked has
		// ended since then.
		s.IdleSince = seen.Ended
	}
	s.Blocked = blocked
	if !seen.Unknown {
		s.SampledUntil = seen.Ended
	}
	if !seen.Used.IsZero() {
		s.LastActivity = latest(s.LastActivity, seen.Used)
		if !s.IdleSince.IsZero() {
			s.IdleSince = latest(s.IdleSince, seen.Used)
		}
	}
	s = s.afterOthers(policy, seen, eligible, now)
	unused := latest(s.Unused, s.Undecided)
	switch {
	case !s.LastActivity.IsZero(), !seen.Reported, seen.Elsewhere.Used, seen.Woken.IsZero(), missed, tookOver:
		unused = time.Time{}
	// A server that has stopped since the wake, in this pod or in one before it, has made a checkpoint then or when it
	// recovered.
	case first && seen.Began.Sub(seen.Woken).Abs() <= wokenWithin && seen.Began.Sub(seen.Started) <= unwatchedAtMost &&
		seen.Checkpointed.Before(seen.Woken):
		unused = seen.Woken
	}
	withheld := seen.Announced || seen.Unknown && !s.Undecided.IsZero()
	if s.Unused, s.Undecided = unused, (time.Time{}); withheld {
		s.Unused, s.Undecided = time.Time{}, unused
	}
	return s
}

// unwatched reports whether sessions may have gone unseen since the sample that ended at that time.
func (o Observation) unwatched(since time.Time) bool {
	return o.Gap || !o.Reported && o.Began.Sub(since) > longestGap
}

// afterOthers applies what the other instances, the Cluster and the control channel say. A new time to stay awake until
// cancels a request to sleep that was made before.
func (s State) afterOthers(policy Policy, seen Observation, eligible bool, now time.Time) State {
	if seen.Elsewhere.Asked {
		switch {
		case seen.Elsewhere.Active:
			s.ElsewhereSince, s.LastActivity = now, latest(s.LastActivity, now)
		case !seen.Elsewhere.Unknown:
			s.ElsewhereSince = seen.Elsewhere.IdleSince
		}
	}
	s.Requested = latest(s.Requested, seen.Requested)
	if until := policy.KeepAwakeUntil; now.Before(until) && until.After(s.KeptAwakeUntil) {
		s.CancelledAt = now
	}
	s.KeptAwakeUntil = policy.KeepAwakeUntil
	if now.Sub(s.Requested) > requestLasts || !s.Requested.After(s.CancelledAt) {
		s.Requested = time.Time{}
	}
	switch {
	case !eligible:
		s.EligibleSince, s.ElsewhereSince, s.Requested = time.Time{}, time.Time{}, time.Time{}
	case s.EligibleSince.IsZero() || now.Before(s.EligibleSince):
		s.EligibleSince = now
	}
	return s
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func rank(r Reason) int { return slices.Index(Reasons(), r) }
