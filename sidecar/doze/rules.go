package doze

import (
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// notStoppingFor is how long the instance manager must report without a break that it is not stopping PostgreSQL until
// it is assumed to have missed the fence, which was lifted. It obeys a fence within 25 s: before that, it handles
// plugins, secrets and the configuration, with requests for which a slow API server may take seconds each. The gateway
// holds clients meanwhile, unless PostgreSQL is restarted: a new postmaster is recognized at once.
const notStoppingFor = 25 * time.Second

// acceptingFor is how long a postmaster must accept sessions without a break until it is assumed to stay, unless the
// instance manager reports that it is stopping it. The manager may never answer, and PostgreSQL must serve clients
// nevertheless. A manager that still obeys the fence does so within 25 s. The plugin waits as long if the sidecar is
// down.
const acceptingFor = 2 * time.Minute

// refusals is how many refused connections in a row, dialInterval apart, prove that the postmaster of a lock file is
// dead. One may be refused just before a starting postmaster listens.
const refusals = 2

// stoppedRule decides whether PostgreSQL has stopped.
type stoppedRule struct {
	of      Postmaster
	refused int
}

// observe adds the content of the lock file and, if a connection to the socket was tried, whether it was refused. It
// reports whether PostgreSQL has stopped.
func (s stoppedRule) observe(now Postmaster, tried, refused bool) (stoppedRule, bool) {
	if now != s.of {
		s = stoppedRule{of: now}
	}
	switch {
	case tried && refused:
		s.refused++
	case tried:
		s.refused = 0
	}
	return s, !now.Running || s.refused >= refusals
}

// StartTimeout is for how long after the end of a fence there may be no postmaster until the instance manager counts as
// having failed to start one. It tries only once. On a heavily overloaded machine the first session was opened after 36
// seconds.
const StartTimeout = time.Minute

// startFailedRule decides whether the instance manager has failed to start a postmaster.
type startFailedRule struct {
	stopped stoppedRule
	// since is since when none has been found.
	since time.Time
}

// observe adds the content of the lock file, if known, and whether the socket refuses connections. It reports whether
// the start has failed. During recovery there is a postmaster.
func (a startFailedRule) observe(now Postmaster, known, refused bool, at time.Time) (startFailedRule, bool) {
	if known {
		var none bool
		if a.stopped, none = a.stopped.observe(now, now.Running, refused); none {
			return a, at.Sub(a.since) >= StartTimeout
		}
	}
	a.since = at
	return a, false
}

// servingRule decides whether a postmaster serves that no fence will stop any more.
type servingRule struct {
	// before was running when the fence was set; the fence stops it, or was lifted in time.
	before Postmaster
	// gone is set once before no longer runs.
	gone bool
	// notStoppingSince is since when the instance manager has said that it is not stopping before, acceptingSince since
	// when it has not said that it is; PostgreSQL has accepted sessions since then. They are zero if that is not so.
	notStoppingSince, acceptingSince time.Time
}

// newServingRule returns the rule for a fence. If before is not running, any postmaster that runs later was started
// after it.
func newServingRule(before Postmaster) servingRule {
	return servingRule{before: before, gone: !before.Running}
}

// observePostmaster adds the content of the lock file.
func (s servingRule) observePostmaster(now Postmaster) servingRule {
	s.gone = s.gone || now != s.before
	return s
}

// probeSchedule says when to probe one postmaster while it starts.
type probeSchedule struct {
	of          Postmaster
	first, last time.Time
}

// next reports whether the postmaster is to be probed now. If so, the returned schedule contains that probe.
func (p probeSchedule) next(of Postmaster, now time.Time) (probeSchedule, bool) {
	switch {
	case p.of != of:
		return probeSchedule{of: of, first: now, last: now}, true
	case now.Sub(p.last) < probe.Interval(p.last.Sub(p.first)):
		return p, false
	}
	p.last = now
	return p, true
}

// managerAnswer is the instance manager's answer, and whether PostgreSQL accepted sessions afterwards.
type managerAnswer struct {
	asked, answered time.Time
	// stopping is what the manager answered, if known.
	stopping, known bool
	accepts         bool
}

// observeManager adds an answer, and reports whether it proves that no fence will stop the postmaster before.
func (s servingRule) observeManager(a managerAnswer) (servingRule, bool) {
	if s.gone {
		return s, false
	}
	serves := a.accepts && (!a.known || !a.stopping)
	s.notStoppingSince = since(s.notStoppingSince, serves && a.known, a)
	s.acceptingSince = since(s.acceptingSince, serves, a)
	return s, lasted(s.notStoppingSince, a, notStoppingFor) || lasted(s.acceptingSince, a, acceptingFor)
}

// since returns since when a condition holds, given whether it holds now and since when it held before the answer.
func since(before time.Time, holds bool, a managerAnswer) time.Time {
	switch {
	case !holds:
		return time.Time{}
	case before.IsZero():
		return a.answered
	}
	return before
}

// lasted reports whether a condition that holds since then had held for d when the question was asked.
func lasted(since time.Time, a managerAnswer, d time.Duration) bool {
	return !since.IsZero() && a.asked.Sub(since) >= d
}
