package idle

import (
	"slices"
	"time"
)

// Thresholds are those at which is counted how a cluster would have slept, besides its own.
func Thresholds() []time.Duration {
	return []time.Duration{
		5 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 24 * time.Hour,
	}
}

// WhatIf counts how a cluster would have slept. The zero value has counted nothing.
type WhatIf struct {
	// Observed is for how long the instance has decided, and Awake how much of that each first reason kept it awake.
	Observed time.Duration            `json:"observed"`
	Awake    map[Reason]time.Duration `json:"awake"`
	// At are the sleeps at each of [Thresholds], and Own those at the threshold of the cluster.
	At  []Sleeps `json:"at"`
	Own Sleeps   `json:"own"`
	// Threshold is that of the cluster: after which it would doze, or hibernate if it does not doze.
	Threshold time.Duration `json:"threshold"`
	// Decided is when the newest decision was made, and Reason its first reason.
	Decided time.Time `json:"decided"`
	Reason  Reason    `json:"reason"`
}

// Sleeps counts the sleeps at one threshold.
type Sleeps struct {
	// Count is their number, and Lasted how long those lasted that are over.
	Count  int           `json:"count"`
	Lasted time.Duration `json:"lasted"`
	// Since is when the one began that is not over; zero without one.
	Since time.Time `json:"since,omitzero"`
}

// Total returns how long all sleeps have lasted.
func (s Sleeps) Total(now time.Time) time.Duration {
	if s.Since.IsZero() {
		return s.Lasted
	}
	return s.Lasted + max(now.Sub(s.Since), 0)
}

// Begun reports whether a sleep has begun since the earlier counts.
func (w WhatIf) Begun(earlier WhatIf) bool {
	begun := w.Own.Count != earlier.Own.Count
	for i := range w.At {
		begun = begun || w.At[i].Count != 0 && (i >= len(earlier.At) || w.At[i].Count != earlier.At[i].Count)
	}
	return begun
}

// After returns the counts after a decision. A sleep lasts from the moment at which the cluster has been idle for the
// threshold, or from the decision that found nothing else against it, to the next use, or to the end of what is known.
// What forbids sleep but is no use does not end one: a sleeping cluster begins no Backup.
func (w WhatIf) After(policy Policy, state State, seen Observation, decision Decision, now time.Time) WhatIf {
	last := w.Decided
	gap := last.IsZero() || now.Before(last) || now.Sub(last) > unsampledAtMost
	clock, proven := state.clock(seen)
	unknown := seen.Siblings > 0 && (!seen.Elsewhere.Asked || seen.Elsewhere.Unknown)
	blocked := unknown || slices.ContainsFunc(decision.Blockers, func(r Reason) bool {
		return r != ReasonWaiting && r != ReasonMinimumUptime && r != ReasonObserved
	})
	after := func(s Sleeps, threshold time.Duration) Sleeps {
		if !s.Since.IsZero() && (gap || !proven || unknown || clock.After(s.Since)) {
			end := last // what has been counted stays
			if !gap && state.LastActivity.After(last) {
				end = earliest(state.LastActivity, now)
			}
			s.Lasted, s.Since = s.Total(end), time.Time{}
		}
		if s.Since.IsZero() && proven && !blocked && seen.Began.Sub(clock) >= threshold {
			if s.Since = clock.Add(threshold); gap || s.Since.Before(last) {
				s.Since = now
			}
			s.Count++
		}
		return s
	}
	thresholds := Thresholds()
	at := make([]Sleeps, len(thresholds))
	copy(at, w.At)
	for i, threshold := range thresholds {
		at[i] = after(at[i], threshold)
	}
	w.Threshold, _ = state.thresholds(policy, decision.DozeBlockers)
	w.At, w.Own = at, after(w.Own, w.Threshold)
	if !gap {
		w.Observed += now.Sub(last)
		awake := map[Reason]time.Duration{w.Reason: now.Sub(last)}
		for reason, lasted := range w.Awake {
			awake[reason] += lasted
		}
		w.Awake = awake
	}
	w.Decided, w.Reason = now, decision.Reason
	return w
}
