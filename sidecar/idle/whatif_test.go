package idle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// watch observes a cluster for a second a character of the picture: in use (#), idle (.), unknown (?), idle while a
// Backup runs (b), and unobserved (space).
func watch(picture string, threshold time.Duration) WhatIf {
	policy := Policy{Observed: true, Threshold: threshold}
	var state State
	var counts WhatIf
	for i, second := range picture {
		now := midnight.Add(time.Duration(i) * time.Second)
		seen := Observation{Began: now, Ended: now, Reported: true}
		switch second {
		case '#':
			seen.InUse = []Reason{ReasonActive}
		case '?':
			seen = Observation{Unknown: true, Reported: true}
		case 'b':
			seen.Blockers = []Reason{ReasonBackupRunning}
		case ' ':
			continue
		}
		var decision Decision
		state, decision = Decide(policy, false, state, seen, now)
		counts = counts.After(policy, state, seen, decision, now)
	}
	return counts
}

func TestWhatIf(t *testing.T) {
	t.Parallel()
	const minutes = "............................................................"
	for _, row := range []struct {
		rule, picture       string
		count               int
		lasted              time.Duration
		observed, keptAwake time.Duration
		keptAwakeBy         Reason
	}{
		{"a cluster that is in use does not sleep", "##########", 0, 0, 9 * time.Second, 9 * time.Second, ReasonActive},
		{"an idle one sleeps once it has been idle for the threshold", "#.......", 1, 2 * time.Second, 7 * time.Second, time.Second, ReasonActive},
		{"use ends a sleep", "#.......#......", 2, 4 * time.Second, 14 * time.Second, 2 * time.Second, ReasonActive},
		{"so does the unknown, at the last known moment", "#.......?", 1, 2 * time.Second, 8 * time.Second, time.Second, ReasonActive},
		{"a Backup delays a sleep", "#....bbb..", 1, time.Second, 9 * time.Second, 3 * time.Second, ReasonBackupRunning},
		{"but does not end one", "#.......bbb", 1, 5 * time.Second, 10 * time.Second, 2 * time.Second, ReasonBackupRunning},
		{"what was not observed is not counted", "#......." + strings.Repeat(" ", 130) + "#", 1, 2 * time.Second, 7 * time.Second, time.Second, ReasonActive},
	} {
		counts := watch(row.picture, 4*time.Second)
		end := midnight.Add(time.Duration(len(row.picture)-1) * time.Second)
		if got := counts.Own; got.Count != row.count || got.Total(end) != row.lasted {
			t.Errorf("%s: %d sleeps of %s, want %d of %s", row.rule, got.Count, got.Total(end), row.count, row.lasted)
		}
		if counts.Observed != row.observed || counts.Awake[row.keptAwakeBy] != row.keptAwake {
			t.Errorf("%s: observed for %s, and %v, want %s and %s of %s", row.rule, counts.Observed, counts.Awake,
				row.observed, row.keptAwake, row.keptAwakeBy)
		}
	}
	counts := watch("#"+strings.Repeat(minutes, 20), time.Hour) // 20 minutes
	end := midnight.Add(20 * time.Minute)
	for i, want := range []time.Duration{15*time.Minute - time.Second, 5*time.Minute - time.Second, 0, 0} {
		if got := counts.At[i].Total(end); got != want {
			t.Errorf("with a threshold of %s it would have slept for %s, want %s", Thresholds()[i], got, want)
		}
	}
}

// Other instances are asked once the shortest threshold has passed, not only at the cluster's own.
func TestDecide_asksTheOtherInstancesOfAnObservedClusterEarly(t *testing.T) {
	t.Parallel()
	policy := Policy{Observed: true, Threshold: time.Hour}
	var state State
	var decision Decision
	var asked time.Duration
	for now := midnight; asked == 0 && now.Before(midnight.Add(time.Hour)); now = now.Add(time.Minute) {
		seen := Observation{Began: now, Ended: now, Reported: true, Siblings: 1}
		if state, decision = Decide(policy, false, state, seen, now); decision.Action == ActionAsk {
			asked = now.Sub(midnight)
		}
	}
	if asked != Thresholds()[0] {
		t.Errorf("asked after %s, want %s", asked, Thresholds()[0])
	}
	now := midnight.Add(asked)
	seen := Observation{Began: now, Ended: now, Reported: true, Siblings: 1, Elsewhere: Elsewhere{Asked: true, IdleSince: midnight}}
	if state, decision = Decide(policy, false, state, seen, now); decision.Action != ActionNone ||
		decision.Reason != ReasonWaiting {
		t.Errorf("then %+v", decision)
	}
	if counts := (WhatIf{}).After(policy, state, seen, decision, now); counts.At[0].Count != 1 || counts.Own.Count != 0 {
		t.Errorf("counted are %+v", counts)
	}
}

// A standby that is in use, or cannot be asked, ends a sleep, even while something else keeps the cluster awake.
func TestWhatIf_endsASleepThatIsNoLongerProven(t *testing.T) {
	t.Parallel()
	policy := Policy{Observed: true, Threshold: 10 * time.Minute}
	for _, row := range []struct {
		rule      string
		elsewhere Elsewhere
		lasted    time.Duration
	}{
		{"an idle standby does not", Elsewhere{Asked: true, IdleSince: midnight}, 10 * time.Minute},
		{"one in use does", Elsewhere{Asked: true, Active: true}, 5 * time.Minute},
		{"one that does not answer does", Elsewhere{Asked: true, Unknown: true}, 4 * time.Minute},
	} {
		var state State
		var counts WhatIf
		for minute := range 21 {
			now := midnight.Add(time.Duration(minute) * time.Minute)
			seen := Observation{Began: now, Ended: now, Reported: true, Siblings: 1}
			if minute >= 15 {
				seen.Blockers, seen.Elsewhere = []Reason{ReasonMaintenance}, row.elsewhere
			} else {
				seen.Elsewhere = Elsewhere{Asked: true, IdleSince: midnight}
			}
			before := counts
			var decision Decision
			state, decision = Decide(policy, false, state, seen, now)
			counts = counts.After(policy, state, seen, decision, now)
			if told, tells := before.Own.Total(before.Decided), counts.Own.Total(now); tells < told {
				t.Errorf("%s: after %s, %s were counted, and %s before", row.rule, now.Sub(midnight), tells, told)
			}
		}
		if got := counts.Own.Total(counts.Decided); got != row.lasted {
			t.Errorf("%s: it would have slept for %s, want %s", row.rule, got, row.lasted)
		}
	}
	seen := Observation{Began: midnight.Add(20 * time.Minute), Ended: midnight.Add(20 * time.Minute), Reported: true, Siblings: 1, Blockers: []Reason{ReasonMaintenance}}
	state := State{IdleSince: midnight, EligibleSince: midnight, SampledUntil: midnight.Add(19 * time.Minute)}
	if _, decision := Decide(policy, false, state, seen, seen.Ended); decision.Action != ActionAsk {
		t.Errorf("the standbys are not asked: %+v", decision)
	}
}

// A session that has ended before the newest decision does not take back what has been counted until then.
func TestWhatIf_neverCountsLess(t *testing.T) {
	t.Parallel()
	policy := Policy{Observed: true, Threshold: time.Minute}
	var state State
	var counts WhatIf
	told := time.Duration(0)
	for second := 0; second < 300; second += 30 {
		now := midnight.Add(time.Duration(second) * time.Second)
		seen := Observation{Began: now, Ended: now, Reported: true}
		if second == 210 {
			seen.Used = now.Add(-50 * time.Second)
		}
		var decision Decision
		state, decision = Decide(policy, false, state, seen, now)
		counts = counts.After(policy, state, seen, decision, now)
		if total := counts.Own.Total(counts.Decided); total < told {
			t.Errorf("after %d s, %s are counted, and %s were before", second, total, told)
		} else {
			told = total
		}
	}
}

// A cluster that has been idle for 4 s sleeps for real at that threshold, until it is woken 20 minutes after the last
// use.
func TestWhatIf_countsARealSleepAtEveryThreshold(t *testing.T) {
	t.Parallel()
	const wake = 20 * time.Minute
	for _, row := range []struct {
		rule, picture string
		wake, sampled time.Duration // since midnight
		lasted        [3]time.Duration
		own, observed time.Duration
		wakes         []time.Duration
	}{
		{
			"it lasts from each threshold that the idle time reached to the wake", ".....", wake, wake + 9*time.Second,
			[3]time.Duration{15 * time.Minute, 5 * time.Minute, 0}, wake - 4*time.Second, wake, []time.Duration{9 * time.Second},
		},
		{
			"a sample long after the wake does not say how long it took", ".....", wake, wake + time.Hour,
			[3]time.Duration{15 * time.Minute, 5 * time.Minute, 0}, wake - 4*time.Second, wake, nil,
		},
		{
			"of a wake by a clock that is ahead, only the past counts", ".....", wake, wake - time.Minute,
			[3]time.Duration{14 * time.Minute, 4 * time.Minute, 0}, wake - time.Minute - 4*time.Second, wake - time.Minute, nil,
		},
		{
			"what was not idle before has not slept", "....?", wake, wake + time.Second,
			[3]time.Duration{}, 0, 4 * time.Second, []time.Duration{time.Second},
		},
	} {
		counts := watch(row.picture, 4*time.Second)
		woken := counts.AfterWake("", midnight.Add(row.wake), midnight.Add(row.sampled))
		if again := woken.AfterWake("", midnight.Add(row.wake), midnight.Add(row.sampled)); again.Observed != woken.Observed {
			t.Errorf("%s: the same wake counts twice", row.rule)
		}
		// A client that uses it afterwards, for two seconds, changes nothing but the time that is observed.
		seen := Observation{InUse: []Reason{ReasonActive}, Reported: true}
		var state State
		for second := range 3 {
			now := midnight.Add(row.sampled + time.Duration(second)*time.Second)
			seen.Began, seen.Ended = now, now
			var decision Decision
			state, decision = Decide(Policy{Observed: true, Threshold: 4 * time.Second}, false, state, seen, now)
			woken = woken.After(Policy{Observed: true, Threshold: 4 * time.Second}, state, seen, decision, now)
		}
		for i, lasted := range row.lasted {
			if got := woken.At[i]; got.Lasted != lasted || !got.Since.IsZero() || (got.Count == 0) != (lasted == 0) {
				t.Errorf("%s: after %s, %+v, want %s", row.rule, Thresholds()[i], got, lasted)
			}
		}
		if got := woken.Own; got.Lasted != row.own || !got.Since.IsZero() {
			t.Errorf("%s: at its own threshold %+v, want %s", row.rule, got, row.own)
		}
		if got := woken.Observed; got != row.observed+2*time.Second {
			t.Errorf("%s: observed for %s, want %s", row.rule, got, row.observed+2*time.Second)
		}
		if !slices.Equal(woken.Wakes, row.wakes) {
			t.Errorf("%s: the wakes took %v, want %v", row.rule, woken.Wakes, row.wakes)
		}
	}
}

func TestWhatIf_reportsTheMedianOfTheNewestWakes(t *testing.T) {
	t.Parallel()
	counts := watch(".....", 4*time.Second)
	for wake := range 20 {
		at := midnight.Add(time.Duration(wake+1) * time.Hour)
		counts = counts.AfterWake("", at, at.Add(time.Duration(wake+1)*time.Second))
	}
	if got := counts.Report().WakeSeconds; got != 16 {
		t.Errorf("the median of 12 to 20 seconds is %g", got)
	}
}

func TestWhatIf_timesTheWakesThatWereWaitedFor(t *testing.T) {
	t.Parallel()
	at := midnight.Add(time.Hour)
	for cause, waits := range map[contract.Cause]bool{
		"": true, contract.CauseConnection: true, contract.CauseBackup: true,
		contract.CauseWindow: false, contract.CauseRequest: false, contract.CauseObject: false,
	} {
		counts := watch(".....", 4*time.Second).AfterWake(cause, at, at.Add(9*time.Second))
		if got := counts.Report().WakeSeconds; (got == 9) != waits || (got == 0) == waits {
			t.Errorf("the wake for %q took %g s", cause, got)
		}
		if got := counts.At[0].Total(at); got != 55*time.Minute {
			t.Errorf("until the wake for %q it slept for %s", cause, got)
		}
	}
}

// Anybody may have written the annotation.
func TestParseWhatIf_takesOnlyCountsWithADecision(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "null", "{}", "[]", `{"at":[{},{},{},{},{},{},{},{}]}`, `{"at":[{}],"decided":"2026-03-02T12:00:00Z"}`,
	} {
		if got, err := ParseWhatIf([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}
