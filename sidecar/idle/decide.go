package idle

import (
	"slices"
	"time"
)

// How often an instance is sampled while the feature is on.
const (
	// RestInterval is for an instance whose every ended TCP session is reported: only what such a report does not show needs
	// another sample.
	RestInterval = time.Minute
	// LocalInterval is for an instance with an open session over the Unix socket, whose end nothing reports, for one whose
	// extensions schedule jobs, of which nothing reports any, and for one that could not be sampled.
	LocalInterval = 2 * time.Second
	// PollInterval is for an instance whose ended sessions are not reported: a session between two samples is not seen.
	PollInterval = time.Second
	// BlockedInterval is for a cluster that would sleep but for something that may end at any time.
	BlockedInterval = 30 * time.Second
	// AskInterval is for a cluster that would sleep but for another instance.
	AskInterval = 10 * time.Second
)

const (
	// longestGap is the longest time between two samples that is still taken as watched where nothing reports what comes and
	// goes. What happened in a longer one, in which this process or its machine stood still, is not known.
	longestGap = 10 * time.Second
	// longestMinimum bounds the time that a cluster is up before it is put to sleep on request.
	longestMinimum = 5 * time.Minute
	// unusedThreshold is after how long a cluster sleeps again that a connection woke and that nobody used then.
	unusedThreshold = time.Minute
	// wokenWithin is how soon after the wake the first sample is taken that counts as watched from the beginning.
	wokenWithin = 5 * time.Minute
	// unwatchedAtMost is how long a server that was woken has run at most when the first sample of it is taken. The Cluster is not
	// healthy before; who comes and goes meanwhile without the gateway is not known.
	unwatchedAtMost = time.Minute
	// requestLasts is for how long a request to sleep waits for what is in use.
	requestLasts = 10 * time.Minute
)

// Observation is what one sample of the instance and its Cluster showed, and what came to light since the sample before.
type Observation struct {
	// Began and Ended enclose the sample of the instance; both are zero when it was not sampled.
	Began, Ended time.Time
	// Unknown says that the sample did not show whether the instance is used.
	Unknown bool
	// InUse is why the instance is in use at this moment; empty: it is not.
	InUse []Reason
	// Used is the newest proof of a use that is over; zero when there is none since the sample before.
	Used time.Time
	// Gap says that since the sample before something may have come and gone unseen.
	Gap bool
	// Reported says that every TCP session that ends is reported, so that samples may be rare.
	Reported bool
	// Local says that a session that counts is open whose end nothing reports.
	Local bool
	// Scheduler says that an extension is loaded whose background workers run jobs, which only a sample shows.
	Scheduler bool
	// Requested is the newest request to sleep as soon as nothing is in use; zero when there is none.
	Requested time.Time
	// Started is when the server started.
	Started time.Time
	// Woken is when a connection woke the cluster, and zero if that is not so or not known, or once a session has been told of.
	Woken time.Time
	// Siblings is the number of other instances, and Elsewhere what they answered.
	Siblings  int
	Elsewhere Elsewhere
	// Blockers is what forbids sleep whatever the sessions say.
	Blockers []Reason
}

// Elsewhere is what the other instances answered.
type Elsewhere struct {
	// Asked says that they were asked for this decision.
	Asked bool
	// Unknown says that one did not answer, or does not know; Active that one is in use.
	Unknown, Active bool
	// Blockers is what their servers say against a shutdown.
	Blockers []Reason
	// IdleSince is since when all of them are idle, if they are.
	IdleSince time.Time
	// Used says that one of them has been used since a connection woke the cluster, or may have been.
	Used bool
}

// Reason is what the other instances say against sleep; empty: nothing.
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
	// IdleSince is the start of the time that is proven idle; zero while in use or unknown.
	IdleSince time.Time
	// EligibleSince is since when this instance has been the one to decide; zero while it is not.
	EligibleSince time.Time
	// ElsewhereSince is since when the other instances are idle, as far as they were asked.
	ElsewhereSince time.Time
	// SampledUntil is the end of the newest successful sample.
	SampledUntil time.Time
	// LastActivity is the newest sign of use; zero when none was seen.
	LastActivity time.Time
	// Requested is when sleep was asked for; zero when it was not.
	Requested time.Time
	// Unused is when a connection woke the cluster, as long as every sample and event since shows that nobody has used it; zero
	// once somebody has, or may have.
	Unused time.Time
}

// Action is what to do.
type Action int

// The actions.
const (
	// ActionNone leaves everything as it is.
	ActionNone Action = iota
	// ActionAsk asks the other instances and decides again.
	ActionAsk
	// ActionHibernate puts the cluster to sleep.
	ActionHibernate
)

// Decision is what to do, why, and when to sample again.
type Decision struct {
	// Action is what to do now.
	Action Action
	// Reason is the first of what keeps the cluster awake, or ReasonIdle.
	Reason Reason
	// Blockers is everything that keeps the cluster awake, in the order of [Reasons].
	Blockers []Reason
	// ThresholdPassed says that the cluster has been idle for the threshold, so that only blockers keep it awake.
	ThresholdPassed bool
	// Due is when the threshold will have passed if nothing happens; zero while in use or unknown.
	Due time.Time
	// Next is when to sample again, always later than now; zero when only a change of the Cluster can change anything.
	Next time.Time
}

// Decide returns what to do after a sample. invalid says that the policy had problems.
func Decide(policy Policy, invalid bool, state State, seen Observation, now time.Time) (State, Decision) {
	inWindow, windowChange := keepAwake(policy.KeepAwake, now)
	blockers := blockersOf(policy, invalid, seen, now)
	if inWindow {
		blockers = append(blockers, ReasonKeepAwakeWindow)
	}
	state = state.after(seen, eligible(blockers), now)
	clock := latest(latest(state.IdleSince, state.EligibleSince), state.ElsewhereSince)
	proven := !state.IdleSince.IsZero() && !state.EligibleSince.IsZero() && !seen.Began.IsZero()
	threshold := state.threshold(policy)
	decision := Decision{Reason: ReasonIdle, ThresholdPassed: proven && seen.Began.Sub(clock) >= threshold}
	if proven {
		decision.Due = clock.Add(threshold)
	}
	if !decision.ThresholdPassed && !seen.Unknown && len(seen.InUse) == 0 {
		if reason := waitingFor(policy, state, seen, proven); reason != "" {
			blockers = append(blockers, reason)
		}
	}
	slices.SortFunc(blockers, func(a, b Reason) int { return rank(a) - rank(b) })
	decision.Blockers = slices.Compact(blockers)
	switch {
	case len(decision.Blockers) != 0:
		decision.Reason = decision.Blockers[0]
	case seen.Siblings > 0 && !seen.Elsewhere.Asked:
		decision.Action, decision.Reason = ActionAsk, ReasonSiblingUnknown
		decision.Blockers = []Reason{ReasonSiblingUnknown}
	default:
		decision.Action = ActionHibernate
	}
	if policy.Enabled && !invalid {
		changes := []time.Time{decision.Due, windowChange, policy.KeepAwakeUntil}
		if !state.Requested.IsZero() {
			changes = append(changes, state.EligibleSince.Add(minimumUptime(policy)))
		}
		decision.Next = next(decision, seen, now, changes)
	}
	return state, decision
}

// waitingFor is what the threshold, or a request to sleep at once, still has to wait for; empty: nothing.
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

// threshold is how long the cluster must be idle: a wake that nobody used buys a minute.
func (s State) threshold(policy Policy) time.Duration {
	if s.Unused.IsZero() {
		return policy.Threshold
	}
	return min(policy.Threshold, unusedThreshold)
}

// minimumUptime is for how long a cluster is up before it is put to sleep on request.
func minimumUptime(policy Policy) time.Duration { return min(policy.Threshold, longestMinimum) }

// next is when to sample again: after the interval, or earlier when the passing of time alone may change the decision. What
// has come while the sample was going on needs another one at once.
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

// blockersOf is what keeps the cluster awake, the threshold and the windows aside.
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
		{!invalid && !policy.Enabled, ReasonDisabled},
		{now.Before(policy.KeepAwakeUntil), ReasonKeepAwakeUntil},
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

// eligible reports whether this instance is the one to decide: what makes it so starts the clock anew.
func eligible(blockers []Reason) bool {
	return !slices.ContainsFunc(blockers, func(r Reason) bool {
		switch r {
		case ReasonInvalidAnnotation, ReasonDisabled, ReasonPluginNotListed, ReasonAlreadyHibernating,
			ReasonNotPrimary, ReasonSwitchover:
			return true
		default:
			return false
		}
	})
}

// after is the state with one more sample taken in.
func (s State) after(seen Observation, eligible bool, now time.Time) State {
	first := s.SampledUntil.IsZero() && !seen.Unknown
	tookOver := !first && eligible && s.EligibleSince.IsZero() // what the primary before was used for is not known
	switch {
	case seen.Unknown:
		s.IdleSince = time.Time{}
	case len(seen.InUse) != 0:
		s.IdleSince, s.LastActivity = time.Time{}, latest(s.LastActivity, seen.Ended)
	case s.IdleSince.IsZero() || seen.Ended.Before(s.IdleSince) || seen.unwatched(s.SampledUntil):
		s.IdleSince = seen.Ended // it begins here, or the machine's clock was set back, or no sample was taken for too long
	}
	if !seen.Unknown {
		s.SampledUntil = seen.Ended
	}
	if !seen.Used.IsZero() {
		s.LastActivity = latest(s.LastActivity, seen.Used)
		if !s.IdleSince.IsZero() {
			s.IdleSince = latest(s.IdleSince, seen.Used)
		}
	}
	s = s.afterOthers(seen, eligible, now)
	switch {
	case !s.LastActivity.IsZero(), seen.Unknown, !seen.Reported, seen.Elsewhere.Used, seen.Woken.IsZero(), !first && seen.Gap, tookOver:
		s.Unused = time.Time{}
	case first && seen.Began.Sub(seen.Woken).Abs() <= wokenWithin && seen.Began.Sub(seen.Started) <= unwatchedAtMost:
		s.Unused = seen.Woken
	}
	return s
}

// unwatched reports whether something may have come and gone since the sample that ended at that time.
func (o Observation) unwatched(since time.Time) bool {
	return o.Gap || !o.Reported && o.Began.Sub(since) > longestGap
}

// afterOthers takes in what the other instances, the Cluster and the control channel say.
func (s State) afterOthers(seen Observation, eligible bool, now time.Time) State {
	if seen.Elsewhere.Asked {
		switch {
		case seen.Elsewhere.Active:
			s.ElsewhereSince, s.LastActivity = now, latest(s.LastActivity, now)
		case !seen.Elsewhere.Unknown:
			s.ElsewhereSince = seen.Elsewhere.IdleSince
		}
	}
	s.Requested = latest(s.Requested, seen.Requested)
	if now.Sub(s.Requested) > requestLasts {
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
