package idle

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// moment is one step of a history: a sample, and the time of the decision.
type moment struct {
	seen Observation
	now  time.Time
}

// history interprets a script of bytes as samples. It includes steps of the machine's clock, forwards and backwards, as far as
// values without a monotonic reading can have them.
func history(script []byte) []moment {
	var moments []moment
	now := midnight
	var woken time.Time
	if len(script) > 0 && script[0]&0x20 != 0 {
		woken = midnight
	}
	for i := 0; i+1 < len(script); i += 2 {
		kind, pace := script[i], script[i+1]
		now = now.Add(time.Duration(pace&15) * 700 * time.Millisecond)
		if pace&0xf0 == 0xf0 {
			now = now.Add(-3 * time.Second) // the clock is set back
		}
		seen := Observation{Began: now, Ended: now.Add(5 * time.Millisecond), Reported: kind&0x10 == 0}
		switch kind & 15 {
		case 1:
			seen.InUse = []Reason{ReasonActive}
		case 2:
			seen = Observation{Unknown: true, Reported: seen.Reported}
		case 3:
			seen.Blockers = []Reason{ReasonNotPrimary}
		case 4:
			seen.Blockers = []Reason{ReasonBackupRunning}
		case 5:
			seen.Used = now.Add(-time.Duration(pace>>4) * time.Second)
		case 6:
			seen.Gap = true
		case 7:
			seen.Siblings, seen.Elsewhere = 1, Elsewhere{Asked: true, Active: true}
		case 8:
			seen.Siblings, seen.Elsewhere = 1, Elsewhere{Asked: true, Unknown: true}
		case 9:
			seen.Siblings, seen.Elsewhere = 1, Elsewhere{Asked: true, IdleSince: now.Add(-time.Duration(pace>>4) * time.Second)}
		case 10:
			seen.Siblings = 1
		case 11:
			seen.Requested = now
		case 12:
			seen.Siblings, seen.Elsewhere = 1, Elsewhere{Asked: true, IdleSince: now.Add(-time.Minute), Blockers: []Reason{ReasonAdvisoryLock}}
		}
		switch kind & 15 {
		case 13: // the gateway has forwarded a session
			woken = time.Time{}
		case 15:
			seen.Blockers = []Reason{ReasonSubscription}
		case 14:
			seen.Siblings, seen.Elsewhere = 1, Elsewhere{Asked: true, IdleSince: now.Add(-time.Minute), Used: true}
		}
		seen.Woken, seen.Started = woken, midnight
		seen.Announced = kind&0x80 != 0 && !seen.Unknown
		if kind&0x40 != 0 { // the server has stopped since the wake
			seen.Checkpointed = midnight.Add(time.Second)
		}
		moments = append(moments, moment{seen, now.Add(5 * time.Millisecond)})
	}
	return moments
}

// FuzzDecide compares Decide with an oracle that reads the whole history again at every step, and checks three more laws: the
// next sample is later than now, additional activity in the past never makes sleep earlier, and what is only observed is never
// put to sleep.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{0, 1, 0, 5, 0, 9, 0, 9})
	f.Add([]byte{0, 1, 1, 3, 0, 3, 0, 15, 0, 15})
	f.Add([]byte{0, 1, 11, 3, 9, 0x93, 7, 15, 9, 0xff})
	f.Add([]byte{0, 1, 9, 3, 0, 15, 12, 15, 9, 1})
	f.Add([]byte{16, 1, 16, 5, 16, 15, 16, 15, 16, 15, 5, 0x4f, 6, 2})
	f.Add([]byte{0x20, 1, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 13, 1, 0, 15})
	f.Add([]byte{0x23, 1, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15})
	f.Add([]byte{0x20, 1, 0, 15, 0, 15, 2, 15, 0, 15, 11, 15, 0, 15, 0, 15})
	f.Add([]byte{0x22, 15, 2, 15, 2, 15, 2, 15, 2, 15, 2, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 200 {
			t.Skip("the oracle reads the whole history at each step")
		}
		hold(t, script)
	})
}

// How many histories [TestDecide_agreesWithAnOracleOnRandomHistories] reads; make fuzz reads ten million others.
var (
	histories = flag.Int("histories", 20_000, "random histories")
	seed      = flag.Uint64("seed", 1, "seed of the random histories")
)

// TestDecide_agreesWithAnOracleOnRandomHistories does the same as the fuzz test, with random histories.
func TestDecide_agreesWithAnOracleOnRandomHistories(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(*seed, 0)) // a test that can be repeated
	script := make([]byte, 48)
	for range *histories {
		length := random.IntN(len(script))
		for i := range length {
			script[i] = byte(random.Uint32())
			if i%2 == 0 && random.IntN(3) != 0 { // mostly nothing happens, otherwise nothing would ever sleep
				script[i] &= 0x10
			}
		}
		hold(t, script[:length])
		if t.Failed() {
			return
		}
	}
}

// hold checks Decide against the oracle and the laws, with a threshold below and one above that of an unused wake.
func hold(t *testing.T, script []byte) {
	t.Helper()
	for _, threshold := range []time.Duration{7 * time.Second, 90 * time.Second} {
		holdAt(t, threshold, script)
	}
}

func holdAt(t *testing.T, threshold time.Duration, script []byte) {
	t.Helper()
	policy := Policy{Enabled: true, Threshold: threshold}
	moments := history(script)
	var state, busier State
	for i, m := range moments {
		var decision, later Decision
		before := state
		state, decision = Decide(policy, false, state, m.seen, m.now)
		if got, want := decision.Action == ActionHibernate, permitted(moments[:i+1], policy.Threshold); got != want {
			t.Fatalf("after %d samples: hibernate %t, the oracle says %t\n%+v", i+1, got, want, moments[:i+1])
		}
		if !decision.Next.After(m.now) {
			t.Fatalf("the next sample, at %s, is not later than now, %s", decision.Next, m.now)
		}
		if observed := observe(policy, before, m); (observed.Reason == ReasonObserved) != (decision.Action == ActionHibernate) ||
			observed.Action != ActionNone && observed.Action != ActionAsk {
			t.Fatalf("after %d samples %+v, but if it is observed %+v", i+1, decision, observed)
		}
		used := m.seen
		if i%3 == 0 && !used.Began.IsZero() {
			used.Used = latest(used.Used, used.Began)
		}
		busier, later = Decide(policy, false, busier, used, m.now)
		if later.Action == ActionHibernate && decision.Action != ActionHibernate {
			t.Fatalf("after %d samples more activity brought sleep nearer\n%+v", i+1, moments[:i+1])
		}
	}
}

// observe decides on one more moment as if the cluster were only observed.
func observe(policy Policy, state State, m moment) Decision {
	policy.Enabled, policy.Observed = false, true
	_, decision := Decide(policy, false, state, m.seen, m.now)
	return decision
}

// permitted is the oracle. Sleep is permitted at the newest sample if that sample found no use and no blocker and if, going back
// from it to a sample that ended a threshold before the newest began, every sample was idle and without a gap, this instance was
// the one to decide, and there was no use in between. For a pending request only the first condition and the minimum uptime are
// needed.
func permitted(moments []moment, threshold time.Duration) bool {
	newest, minimum := moments[len(moments)-1], min(threshold, longestMinimum)
	if unused(moments) {
		threshold = min(threshold, unusedThreshold)
	}
	if refused(newest) || newest.seen.Siblings > 0 && !newest.seen.Elsewhere.Asked {
		return false
	}
	wanted := newest.seen.Began.Add(-threshold)
	up := eligibleSince(moments)
	if requestOf(moments) && !up.After(newest.seen.Began.Add(-minimum)) {
		return true
	}
	return idleBackTo(moments, wanted) && !up.After(wanted) && !elsewhereSince(moments).After(wanted)
}

// unused reports whether a connection woke the cluster and everything since the first successful sample shows that nobody has
// used it.
func unused(moments []moment) bool {
	known := slices.IndexFunc(moments, func(m moment) bool { return !m.seen.Unknown })
	if known < 0 || moments[known].seen.Began.Sub(moments[known].seen.Woken).Abs() > wokenWithin {
		return false
	}
	if moments[known].seen.Began.Sub(moments[known].seen.Started) > unwatchedAtMost || !moments[known].seen.Checkpointed.Before(moments[known].seen.Woken) {
		return false
	}
	notPrimary := func(i int) bool { return slices.Contains(moments[i].seen.Blockers, ReasonNotPrimary) }
	sampled, announced := known, false
	for i, m := range moments {
		if i > known && notPrimary(i-1) && !notPrimary(i) {
			return false // the former primary may have been used
		}
		used := len(m.seen.InUse) != 0 || !m.seen.Used.IsZero() || m.seen.Elsewhere.Active
		doubtful := m.seen.Gap && i != known || !m.seen.Reported || m.seen.Elsewhere.Used || m.seen.Woken.IsZero()
		if used || i >= known && doubtful {
			return false
		}
		if m.seen.Unknown {
			continue
		}
		if i > known && m.seen.Began.Sub(moments[sampled].seen.Ended) > 2*RestInterval {
			return false
		}
		sampled, announced = i, m.seen.Announced
	}
	return !announced
}

// refused reports whether the sample itself forbids sleep.
func refused(m moment) bool {
	return m.seen.Unknown || len(m.seen.InUse) != 0 || len(m.seen.Blockers) != 0 ||
		m.seen.Elsewhere.Asked && (m.seen.Elsewhere.Unknown || m.seen.Elsewhere.Active || len(m.seen.Elsewhere.Blockers) != 0)
}

// idleBackTo reports whether everything from the wanted time to the newest sample is proven idle.
func idleBackTo(moments []moment, wanted time.Time) bool {
	var used time.Time
	for i := len(moments) - 1; i >= 0; i-- {
		seen := moments[i].seen
		if seen.Unknown || len(seen.InUse) != 0 {
			return false
		}
		if slices.Contains(seen.Blockers, ReasonSubscription) { // it may have lasted until the next sample
			used = latest(used, moments[min(i+1, len(moments)-1)].seen.Ended)
		}
		if used = latest(used, seen.Used); used.After(wanted) {
			return false
		}
		if !seen.Ended.After(wanted) {
			// This sample is idle and old enough, so older ones do not matter.
			return true
		}
		if i == 0 || moments[i-1].seen.Unknown || seen.Gap {
			return false
		}
		if before := moments[i-1].seen; !seen.Reported && seen.Began.Sub(before.Ended) > longestGap {
			return false
		}
	}
	return false
}

// eligibleSince recomputes since when this instance has been the one to decide.
func eligibleSince(moments []moment) time.Time {
	var since time.Time
	for _, m := range moments {
		switch {
		case slices.Contains(m.seen.Blockers, ReasonNotPrimary):
			since = time.Time{}
		case since.IsZero() || m.now.Before(since):
			since = m.now
		}
	}
	return since
}

// elsewhereSince recomputes since when the other instances have been idle.
func elsewhereSince(moments []moment) time.Time {
	var since time.Time
	for _, m := range moments {
		switch {
		case slices.Contains(m.seen.Blockers, ReasonNotPrimary):
			since = time.Time{}
		case m.seen.Elsewhere.Active:
			since = m.now
		case m.seen.Elsewhere.Asked && !m.seen.Elsewhere.Unknown:
			since = m.seen.Elsewhere.IdleSince
		}
	}
	return since
}

// requestOf reports whether a request to sleep is pending.
func requestOf(moments []moment) bool {
	var requested time.Time
	for _, m := range moments {
		requested = latest(requested, m.seen.Requested)
		if slices.Contains(m.seen.Blockers, ReasonNotPrimary) || m.now.Sub(requested) > requestLasts {
			requested = time.Time{}
		}
	}
	return !requested.IsZero()
}
