package control

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// look samples the instance if that is permitted; else, or if it fails, the observation is unknown.
func (l *Loop) look(ctx context.Context) idle.Observation {
	l.status.Known = false
	l.looked = time.Now()
	l.endDrain(ctx)
	if !l.mayConnect() || !l.accepting(ctx) {
		l.closeSessions()
		l.leave()
		l.memory, l.account = memory{gap: true}, activity.Account{}
		return idle.Observation{Unknown: true}
	}
	l.join(ctx)
	sample, err := l.sample(ctx)
	if err != nil {
		l.memory, l.account = memory{gap: true}, activity.Account{}
		return idle.Observation{Unknown: true}
	}
	return l.observe(sample)
}

// endDrain ends a drain that has lasted its time if PostgreSQL still accepts sessions.
func (l *Loop) endDrain(ctx context.Context) {
	since := l.drainedSince()
	if since.IsZero() || time.Since(since) < drainLasts || !l.accepting(ctx) {
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.drained = time.Time{}
	l.parts.Logger.Info("the drain has ended: PostgreSQL still accepts sessions")
}

// accepting asks the server whether it accepts sessions.
func (l *Loop) accepting(ctx context.Context) bool {
	l.knocked = time.Now()
	refusing, err := l.parts.Server.ShuttingDown(ctx)
	if err != nil {
		l.parts.Logger.Debug("the server cannot be asked", "error", err.Error())
	}
	return err == nil && !refusing
}

func (l *Loop) rules() activity.Rules {
	return activity.Rules{
		Instances: l.status.View.Instances, Ignore: l.status.Policy.Ignore, Queries: l.status.Policy.Queries,
		Behind: l.parts.Introductions.Behind,
	}
}

// sample looks at the sessions.
func (l *Loop) sample(ctx context.Context) (postgres.Sample, error) {
	start := time.Now()
	sample, err := l.parts.Sampler.Sample(ctx, l.rules())
	l.parts.Observer.Sampled(time.Since(start), err)
	l.logSampleError(err)
	if err == nil && (!l.drainedSince().IsZero() || l.quietNow()) { // drained while it connected, or not to be kept
		l.closeSessions()
	}
	return sample, err
}

// observe makes an observation of a look, and of what came to light since the look before.
func (l *Loop) observe(sample postgres.Sample) idle.Observation {
	l.reading = sample.Began
	l.hearWaiting()
	l.reading = time.Time{}
	l.readWaiting()
	before := l.memory
	l.restore(sample)
	peers := sample.Tally.Peers()
	l.ears.remember(peers)
	l.memory.others = l.memory.others || l.ears.met()
	l.parts.Introductions.Seen(func(peer netip.AddrPort) bool { _, connected := peers[peer]; return connected })
	seen := idle.Observation{
		Began: sample.Began, Ended: sample.Ended, InUse: sample.Tally.InUse(), Used: l.memory.used,
		Gap:      l.memory.gap || before.started != 0 && before.started != sample.Started,
		Reported: l.ears.reports != nil || l.ears.deaf, Local: sample.Tally.Local(),
		Requested: later(l.requested, l.status.Policy.SleepRequested),
	}
	if !seen.Reported && before.ledger != nil && before.ledger.Rose(sample.Ledger) {
		seen.Used = sample.Ended
	}
	doubt := l.balance(&seen, sample)
	changed := newestChange(sample.Tally.Doomed())
	if ago, resting := sample.Tally.LastUse(); resting {
		last := sample.Ended.Add(-ago)
		// The server's clock may have been set since: what has changed since the last look is not older than it.
		if changed != before.changed && last.Before(l.status.State.LookedUntil) {
			last = l.status.State.LookedUntil
		}
		seen.Used = later(seen.Used, last)
	}
	l.memory = memory{
		ledger: sample.Ledger, started: sample.Started, changed: changed, standing: sample.Blockers, doomed: sample.Tally.Doomed(), doubt: doubt,
		uncertain: l.memory.late, former: l.memory.uncertain,
	}
	l.requested = time.Time{}
	l.status.Known, l.status.Tally, l.status.SampledAt, l.status.InactiveSlots = true, sample.Tally, sample.Ended, sample.InactiveSlots
	l.status.Reported = seen.Reported
	return seen
}

// balance has the counters tell what the sessions were of which the kernel's reports do not tell, and returns whether they
// cannot yet.
func (l *Loop) balance(seen *idle.Observation, sample postgres.Sample) (doubt bool) {
	ledger := sample.Ledger.Less(l.own)
	if !seen.Used.IsZero() || len(seen.InUse) != 0 {
		l.account.Restart(ledger, sample.Ended)
		l.settles = 0 // however many looks showed use, rest is yet to be seen
		return false
	}
	finding := l.account.Take(activity.Look{
		Ledger: ledger, At: sample.Ended, Doubtful: len(l.memory.uncertain), Alike: l.alike(), Others: l.memory.others || seen.Gap || !seen.Reported,
		Remembers: l.status.View.ExporterMemory,
	})
	if l.account.Refuted() {
		for _, ended := range l.memory.former {
			l.refused.Remember(ended)
		}
	}
	if len(l.memory.uncertain) != 0 || finding != activity.FindingNone {
		l.parts.Logger.Debug("sessions have ended that may have been logins", "sessions", len(l.memory.uncertain), "finding", finding, "certain", l.account.Certain())
	}
	if finding == activity.FindingUse {
		seen.Used = sample.Ended
	}
	return finding == activity.FindingDoubt || finding == activity.FindingNone && len(l.memory.late) != 0
}

// alike is how many of the sessions in doubt are like others that were no logins.
func (l *Loop) alike() int {
	count := 0
	for _, ended := range l.memory.uncertain {
		if l.refused.Like(ended) {
			count++
		}
	}
	return count
}

// newestChange is the newest change of the state of a session that was judged by resting.
func newestChange(doomed []activity.Doomed) int64 {
	newest := int64(0)
	for _, d := range doomed {
		if d.Idle {
			newest = max(newest, d.Changed)
		}
	}
	return newest
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// logSampleError logs an error when it is another than the last one.
func (l *Loop) logSampleError(err error) {
	message := ""
	if err != nil {
		message = err.Error()
	}
	if message == l.lastError {
		return
	}
	l.lastError = message
	if err != nil {
		l.parts.Logger.Warn("the sessions cannot be sampled", "error", message)
	} else {
		l.parts.Logger.Info("the sessions can be sampled again")
	}
}

// inUseNow takes a look that is kept by nothing and tells whether it, or the counters since the last one, shows use. A look
// that fails shows none.
func (l *Loop) inUseNow(ctx context.Context) bool {
	if !l.drainedSince().IsZero() || !l.accepting(ctx) {
		return false
	}
	sample, err := l.sample(ctx)
	l.parts.Sampler.Close()
	if err != nil {
		return false
	}
	rose := l.memory.ledger != nil && !l.account.Explains(l.memory.ledger, sample.Ledger, sample.Ended.Sub(l.status.SampledAt), l.status.View.ExporterMemory)
	l.memory.ledger, l.status.SampledAt = sample.Ledger, sample.Ended
	return rose || len(slices.DeleteFunc(sample.Tally.InUse(), func(r idle.Reason) bool { return r == idle.ReasonWraparoundVacuum })) != 0
}
