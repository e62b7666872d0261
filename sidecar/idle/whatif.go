package idle

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Thresholds returns the thresholds at which sleeps are counted, besides the cluster's own.
func Thresholds() []time.Duration {
	return []time.Duration{
		5 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 24 * time.Hour,
	}
}

// WhatIf counts how a cluster would have slept at other thresholds than its own, whether it is only observed or sleeps
// for real. The zero value has counted nothing. These are the rules:
//
//   - A sleep begins when the cluster has been idle for the threshold, or with the decision that finds nothing else
//     against it, and lasts until the next use. What forbids sleep but is no use does not end one: a sleeping cluster
//     begins no Backup.
//   - While it sleeps for real, the idle period continues until the wake: see [WhatIf.Asleep].
//   - Unknown is never idle. It ends a sleep at the last moment of which something is known, and is not observed.
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
	// IdleSince is since when the cluster was idle then; zero if that was not proven.
	IdleSince time.Time `json:"idleSince,omitzero"`
	// Hibernated is [contract.AnnotationAsleepSince] of the hibernation for which the Cluster keeps the counts.
	Hibernated string `json:"hibernated,omitempty"`
	// Woken is the newest wake that is counted, or the last moment of which something is known. Wakes is how long the
	// newest ones took, up to the first sample.
	Woken time.Time       `json:"woken,omitzero"`
	Wakes []time.Duration `json:"wakes,omitempty"`
}

// wakesKept is how many of the newest wakes the median is of.
const wakesKept = 9

// ParseWhatIf decodes JSON. What it returns has a decision, or is the zero value with an error.
func ParseWhatIf(text []byte) (WhatIf, error) {
	var w WhatIf
	if err := json.Unmarshal(text, &w); err != nil {
		return WhatIf{}, fmt.Errorf("decode the counts: %w", err)
	}
	if len(w.At) != len(Thresholds()) || w.Decided.IsZero() {
		return WhatIf{}, fmt.Errorf("the counts have %d thresholds, want %d, or no decision", len(w.At), len(Thresholds()))
	}
	return w, nil
}

// Sleeps counts the sleeps at one threshold.
type Sleeps struct {
	// Count is their number, and Lasted how long those lasted that are over.
	Count  int           `json:"count,omitempty"`
	Lasted time.Duration `json:"lasted,omitempty"`
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

// Asleep returns the counts of a cluster that has slept for real since the newest decision, at a moment of that sleep
// or at its end: as it was idle at that decision, it has been idle until then.
func (w WhatIf) Asleep(until time.Time) WhatIf {
	slept := until.Sub(w.Decided)
	if w.IdleSince.IsZero() || slept <= 0 {
		return w
	}
	w.eachSleeps(func(s Sleeps, threshold time.Duration) Sleeps {
		if begins := latest(w.IdleSince.Add(threshold), w.Decided); s.Since.IsZero() && begins.Before(until) {
			s.Count, s.Since = s.Count+1, begins
		}
		return s
	})
	w.observe(ReasonObserved, slept)
	w.Decided = until
	return w
}

// AfterWake returns the counts after the first sample since a wake. It records how long the wake took only if a client
// or a Backup has waited for it. The time in between is not observed.
func (w WhatIf) AfterWake(cause contract.Cause, at, now time.Time) WhatIf {
	w = w.Asleep(earliest(at, now))
	w.Woken = at
	awaited := cause == "" || cause == contract.CauseConnection || cause == contract.CauseBackup
	if took := now.Sub(at); awaited && took > 0 && took <= wokenWithin {
		w.Wakes = append(slices.Clone(w.Wakes[max(len(w.Wakes)-wakesKept+1, 0):]), took)
	}
	return w
}

// eachSleeps replaces those at each threshold, in a copy.
func (w *WhatIf) eachSleeps(change func(Sleeps, time.Duration) Sleeps) {
	thresholds := Thresholds()
	at := make([]Sleeps, len(thresholds))
	copy(at, w.At)
	for i, threshold := range thresholds {
		at[i] = change(at[i], threshold)
	}
	w.At, w.Own = at, change(w.Own, w.Threshold)
}

// observe adds a time with its first reason, in a copy.
func (w *WhatIf) observe(reason Reason, lasted time.Duration) {
	awake := map[Reason]time.Duration{reason: lasted}
	for reason, lasted := range w.Awake {
		awake[reason] += lasted
	}
	w.Observed, w.Awake = w.Observed+lasted, awake
}

// Report returns the counts for /activity and the metrics; nil if there are none.
func (w WhatIf) Report() *contract.ReportedWhatIf {
	if w.Decided.IsZero() {
		return nil
	}
	told := func(s Sleeps, threshold time.Duration) contract.ReportedSleeps {
		r := contract.ReportedSleeps{
			ThresholdSeconds: threshold.Seconds(), Count: s.Count, Seconds: s.Total(w.Decided).Seconds(),
		}
		if !s.Since.IsZero() {
			r.Since = new(s.Since.UTC())
		}
		return r
	}
	r := &contract.ReportedWhatIf{
		ObservedSeconds: w.Observed.Seconds(), AwakeSeconds: map[string]float64{}, Own: told(w.Own, w.Threshold),
	}
	for i, threshold := range Thresholds() {
		r.Sleeps = append(r.Sleeps, told(w.At[i], threshold))
	}
	for reason, lasted := range w.Awake {
		r.AwakeSeconds[string(reason)] = lasted.Seconds()
	}
	if wakes := slices.Sorted(slices.Values(w.Wakes)); len(wakes) != 0 {
		r.WakeSeconds = wakes[len(wakes)/2].Seconds()
	}
	return r
}

// After returns the counts after a decision.
func (w WhatIf) After(policy Policy, state State, seen Observation, decision Decision, now time.Time) WhatIf {
	last := w.Decided
	gap := last.IsZero() || now.Before(last) || now.Sub(last) > unsampledAtMost || last.Equal(w.Woken)
	clock, proven := state.clock(seen)
	unknown := seen.Siblings > 0 && (!seen.Elsewhere.Asked || seen.Elsewhere.Unknown)
	blocked := unknown || slices.ContainsFunc(decision.Blockers, func(r Reason) bool {
		return r != ReasonWaiting && r != ReasonMinimumUptime && r != ReasonObserved
	})
	w.Threshold, _ = state.thresholds(policy, decision.DozeBlockers)
	w.eachSleeps(func(s Sleeps, threshold time.Duration) Sleeps {
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
	})
	if !gap {
		w.observe(w.Reason, now.Sub(last))
	}
	w.Decided, w.Reason, w.IdleSince = now, decision.Reason, time.Time{}
	if proven && !unknown {
		w.IdleSince = clock
	}
	return w
}
