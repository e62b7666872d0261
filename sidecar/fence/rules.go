package fence

import (
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// calmLasts is how long the instance manager must say without a break that it is not stopping PostgreSQL, until a fence that was
// lifted is taken for one that it never saw: before it obeys a fence it looks after plugins, secrets and the configuration.
const calmLasts = 6 * time.Second

// settlesWithin is how long a postmaster must accept sessions without a break, and the instance manager not say that it is stopping
// it, until it is taken to stay although the manager does not say the opposite: it may never answer, and PostgreSQL has to serve all
// the same. A manager that still obeys does so after 25 s at most. The plugin waits as long where the sidecar is down.
const settlesWithin = 2 * time.Minute

// refusals is how many refused connections in a row, a second apart, prove that the postmaster is dead whose lock file is there.
// One may be refused in the moment before a starting postmaster listens.
const refusals = 2

// stopped is the rule by which PostgreSQL is stopped.
type stopped struct {
	of      Postmaster
	refused int
}

// observe takes in what the lock file says and, if its socket was tried, whether it refused the connection. It reports whether
// PostgreSQL is stopped.
func (s stopped) observe(now Postmaster, tried, refused bool) (stopped, bool) {
	if now != s.of {
		s = stopped{of: now}
	}
	switch {
	case tried && refused:
		s.refused++
	case tried:
		s.refused = 0
	}
	return s, !now.Running || s.refused >= refusals
}

// StartsWithin is how long no postmaster may run after a fence was lifted until the instance manager is taken to have failed to
// start it: it tries once. On a heavily overloaded machine a session was opened after 36 seconds, and the postmaster runs earlier.
const StartsWithin = time.Minute

// absent is the rule by which a postmaster is not started.
type absent struct {
	stopped stopped
	// since is since when none has been found.
	since time.Time
}

// observe takes in what the lock file says, if known, and whether its socket refuses connections. A recovery has a postmaster.
func (a absent) observe(now Postmaster, known, refused bool, at time.Time) (absent, bool) {
	if known {
		var none bool
		if a.stopped, none = a.stopped.observe(now, now.Running, refused); none {
			return a, at.Sub(a.since) >= StartsWithin
		}
	}
	a.since = at
	return a, false
}

// serving is the rule by which a postmaster serves that will stay.
type serving struct {
	// before was running when the fence was set; the fence stops it, or was lifted in time.
	before Postmaster
	// gone is set once it is no longer the one that runs.
	gone bool
	// calm is since when the instance manager has said that it is not stopping it; zero while it has not. undisputed is since when it
	// has not said that it is, and PostgreSQL has accepted sessions.
	calm, undisputed time.Time
}

// newServing begins to apply the rule. If before is not running, whoever runs later will stay.
func newServing(before Postmaster) serving { return serving{before: before, gone: !before.Running} }

// found takes in what the lock file says.
func (s serving) found(now Postmaster) serving {
	s.gone = s.gone || now != s.before
	return s
}

// probes are those of one postmaster while it starts.
type probes struct {
	of          Postmaster
	first, last time.Time
}

// next reports whether the postmaster is to be probed now, and takes that in.
func (p probes) next(of Postmaster, now time.Time) (probes, bool) {
	switch {
	case p.of != of:
		return probes{of: of, first: now, last: now}, true
	case now.Sub(p.last) < probe.Interval(p.last.Sub(p.first)):
		return p, false
	}
	p.last = now
	return p, true
}

// answer is what the instance manager said to a question, and whether PostgreSQL accepted sessions afterwards.
type answer struct {
	asked, answered time.Time
	// stopping is what it said, if known.
	stopping, known bool
	accepts         bool
}

// told takes in an answer, and reports whether the postmaster of before is proven to stay.
func (s serving) told(a answer) (serving, bool) {
	if s.gone {
		return s, false
	}
	serves := a.accepts && (!a.known || !a.stopping)
	s.calm, s.undisputed = since(s.calm, serves && a.known, a), since(s.undisputed, serves, a)
	return s, lasts(s.calm, a, calmLasts) || lasts(s.undisputed, a, settlesWithin)
}

// since returns since when something has been so, given since when it was before the answer.
func since(before time.Time, is bool, a answer) time.Time {
	switch {
	case !is:
		return time.Time{}
	case before.IsZero():
		return a.answered
	}
	return before
}

// lasts reports whether what has been so since then was so for d when the question was asked.
func lasts(since time.Time, a answer, d time.Duration) bool {
	return !since.IsZero() && a.asked.Sub(since) >= d
}
