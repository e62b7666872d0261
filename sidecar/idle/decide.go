package idle

import (
	"slices"
	"time"
)

// SampleInterval is how often an instance is looked at while the feature is on. A session that begins and ends between two
// looks is not seen.
const SampleInterval = 2 * time.Second

// longestGap is the longest time between two looks that is still taken as watched. What happened in a longer one, in which
// this process or its machine stood still, is not known.
const longestGap = 5 * SampleInterval

// Observation is what one look at the instance and its Cluster showed.
type Observation struct {
	// Began and Ended enclose the look at the instance; both are zero when it was not looked at.
	Began, Ended time.Time
	// Unknown says that the look did not show whether the instance is used.
	Unknown bool
	// Active says that at least one session counts.
	Active bool
	// Notified is the time of the newest notification of activity; zero when there was none.
	Notified time.Time
	// Blockers is what forbids sleep whatever the sessions say.
	Blockers []Reason
}

// State is what is known from the looks so far. The zero value knows nothing.
type State struct {
	// IdleSince is the start of the time that is proven idle; zero while active or unknown.
	IdleSince time.Time
	// EligibleSince is since when this instance has been the one to decide; zero while it is not.
	EligibleSince time.Time
	// LookedUntil is the end of the newest successful look.
	LookedUntil time.Time
	// LastActivity is the newest evidence of use; zero when none was seen.
	LastActivity time.Time
}

// Action is what to do.
type Action int

// The actions.
const (
	// ActionNone leaves everything as it is.
	ActionNone Action = iota
	// ActionHibernate puts the cluster to sleep.
	ActionHibernate
)

// Decision is what to do, why, and when to look again.
type Decision struct {
	// Action is what to do now.
	Action Action
	// Reason is the first of what keeps the cluster awake, or ReasonIdle.
	Reason Reason
	// Blockers is everything that keeps the cluster awake, in the order of [Reasons].
	Blockers []Reason
	// ThresholdPassed says that the cluster has been idle for the threshold, so that only blockers keep it awake.
	ThresholdPassed bool
	// Next is when to look again; zero when only a change of the Cluster can change anything.
	Next time.Time
}

// Decide tells what to do after a look. invalid says that the policy had problems.
func Decide(policy Policy, invalid bool, state State, seen Observation, now time.Time) (State, Decision) {
	blockers := blockersOf(policy, invalid, seen)
	state = state.after(seen, eligible(blockers), now)
	clock := latest(state.IdleSince, state.EligibleSince)
	proven := !state.IdleSince.IsZero() && !state.EligibleSince.IsZero() && !seen.Began.IsZero()
	passed := proven && seen.Began.Sub(clock) >= policy.Threshold
	if !passed && !seen.Unknown && !seen.Active {
		blockers = append(blockers, ReasonWaiting)
	}
	slices.SortFunc(blockers, func(a, b Reason) int { return rank(a) - rank(b) })

	decision := Decision{Blockers: blockers, ThresholdPassed: passed, Reason: ReasonIdle}
	switch {
	case len(blockers) != 0:
		decision.Reason = blockers[0]
	default:
		decision.Action = ActionHibernate
	}
	if policy.Enabled && !invalid {
		decision.Next = now.Add(SampleInterval)
		if due := clock.Add(policy.Threshold); proven && due.After(now) && due.Before(decision.Next) {
			decision.Next = due
		}
	}
	return state, decision
}

// blockersOf is what keeps the cluster awake, the threshold aside.
func blockersOf(policy Policy, invalid bool, seen Observation) []Reason {
	blockers := slices.Clone(seen.Blockers)
	switch {
	case invalid:
		blockers = append(blockers, ReasonInvalidAnnotation)
	case !policy.Enabled:
		blockers = append(blockers, ReasonDisabled)
	}
	switch {
	case seen.Unknown:
		blockers = append(blockers, ReasonUnknown)
	case seen.Active:
		blockers = append(blockers, ReasonActive)
	}
	return blockers
}

// eligible tells whether this instance is the one to decide: what makes it so starts the clock anew.
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

// after is the state with one more look taken in.
func (s State) after(seen Observation, eligible bool, now time.Time) State {
	switch {
	case seen.Unknown:
		s.IdleSince = time.Time{}
	case seen.Active:
		s.IdleSince, s.LastActivity = time.Time{}, latest(s.LastActivity, seen.Ended)
	case s.IdleSince.IsZero() || seen.Ended.Before(s.IdleSince) || seen.Began.Sub(s.LookedUntil) > longestGap:
		s.IdleSince = seen.Ended // it begins here, or the machine's clock was set back, or nobody looked for too long
	}
	if !seen.Unknown {
		s.LookedUntil = seen.Ended
	}
	if !seen.Notified.IsZero() {
		s.LastActivity = latest(s.LastActivity, seen.Notified)
		if !s.IdleSince.IsZero() {
			s.IdleSince = latest(s.IdleSince, seen.Notified)
		}
	}
	switch {
	case !eligible:
		s.EligibleSince = time.Time{}
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
