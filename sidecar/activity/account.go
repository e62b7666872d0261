package activity

import (
	"maps"
	"time"
)

const (
	// shortWindow is how far two looks may be apart for what the counters rose by between them to be one burst.
	shortWindow = 3 * time.Second
	// longestDoubt is for how long bursts are waited for that show what bursts are like. Exporters are scraped once a minute or
	// more often, and where sessions that are in doubt end at the same time it takes two.
	longestDoubt = 150 * time.Second
	// fewestInBurst is how often the exporter logs in to some database at least. A single login may have been anybody's over the
	// Unix socket, and must not explain another one.
	fewestInBurst = 2
	// stayedAway is after how long somebody whose sessions are in doubt is not expected any more.
	stayedAway = 10 * time.Second
	// toRefute is how many looks in a row must have shown nothing to rise: those before and after a session's end, and one before in
	// which it may have begun while that look was taken.
	toRefute = 3
	// shortestMemory is how far bursts are apart at least where the exporter remembers nothing: nobody scrapes it more often.
	shortestMemory = 5 * time.Second
)

// Finding is what the counters say of sessions that ended and may have been logins.
type Finding string

// The findings.
const (
	// FindingNone says that none of them was a login.
	FindingNone Finding = "none"
	// FindingDoubt says that it takes another look, a second later, to tell.
	FindingDoubt Finding = "doubt"
	// FindingUse says that one of them may have been a login.
	FindingUse Finding = "use"
)

// Account tells by the databases' counters of sessions whether sessions that ended may have been logins. The operator's
// exporter logs in as well, a dozen times within a tenth of a second whenever it is scraped, and always as often: what the
// counters rise by at once while no session over TCP ends is such a burst. A whole number of bursts explains a rise, and
// nothing else does: one login more is one too many. The maintenance database is left out, since the probes log in there.
//
// It is kept from look to look. The zero value has not looked.
type Account struct {
	// since is where the rise begins that is to be explained, last the newest look. It is settled unless a burst may have been
	// going on there, whose rest nothing would explain.
	since, last     Ledger
	sinceAt, lastAt time.Time
	settled         bool
	// doubtful is how many sessions have ended since then that may have been logins, and began when the first was known of.
	doubtful int
	began    time.Time
	// bursting says that more has risen since then than the sessions in doubt could have been when it did, and spent that there was
	// a rise of no more than the sessions in doubt that ended with it.
	bursting, spent bool
	// crowd is how many sessions in doubt ended with one rise at most.
	crowd int
	// burst is what the counters of the databases rise by in one; nil: not known. It is certain when it was seen twice: two scrapes
	// at once look like one.
	burst     map[string]int64
	certain   bool
	learnedAt time.Time
	rising    rising
	// still is after how many looks in a row no counter had risen.
	still int
	// asked says that sessions in doubt have ended while the burst is not certain, and doubtedAt when the newest did.
	asked     bool
	doubtedAt time.Time
}

// rising is what there is to learn of bursts.
type rising struct {
	resting  bool   // no counter rose between the last two looks
	start    Ledger // where a rise began that goes on; nil: none does
	doubtful int    // sessions that ended during it and may have been logins
	unlike   int    // those of them that are not like any that was refused
	whole    bool   // it was watched from rest on, and is one
}

// Look is what the account takes in of a look.
type Look struct {
	// Ledger is what the statistics say, and At when they were read.
	Ledger Ledger
	At     time.Time
	// Doubtful is how many sessions have ended before it that may have been logins, and Alike how many of them are like others that
	// were none ([Refused]).
	Doubtful, Alike int
	// Others says that there were logins that do not count, so that a rise is no burst.
	Others bool
	// Remembers is for how long the exporter does not log in again after it has.
	Remembers time.Duration
}

// Restart begins with a look before which nothing has to be explained: the server was in use, and that is known.
func (a *Account) Restart(now Ledger, at time.Time) {
	*a = Account{since: now, last: now, sinceAt: at, lastAt: at, burst: a.burst, certain: a.certain, learnedAt: a.learnedAt}
}

// Take takes a look in.
func (a *Account) Take(look Look) Finding {
	now, at, doubtful := look.Ledger, look.At, look.Doubtful
	step, comparable := a.last.rise(now)
	if !comparable {
		pending := a.doubtful + doubtful
		*a = Account{since: now, last: now, sinceAt: at, lastAt: at}
		if pending != 0 {
			return FindingUse
		}
		return FindingNone
	}
	a.learn(look, step, !look.Others && at.Sub(a.lastAt) <= shortWindow)
	a.last, a.lastAt = now, at
	if a.still++; len(step) != 0 {
		a.still = 0
	}
	if doubtful != 0 {
		a.doubtedAt = at
	}
	a.asked = !a.certain && (doubtful != 0 || a.asked && at.Sub(a.doubtedAt) < longestDoubt)
	if doubtful != 0 && a.doubtful == 0 {
		a.began = at
	}
	if a.doubtful += doubtful; a.doubtful == 0 {
		if a.spent, a.crowd = false, 0; look.Others || a.rising.resting {
			a.since, a.sinceAt, a.settled = now, at, a.rising.resting
		}
		return FindingNone
	}
	total, _ := a.since.rise(now)
	return a.judge(look, total)
}

// Curious tells whether it would help that the exporter is scraped now: there are sessions that a burst has to be told from, none is
// certain, nothing else rises, and another such session is not to be expected before the burst has ended. Somebody who comes again
// and again has just been there, or has stayed away.
func (a *Account) Curious() bool {
	away := a.lastAt.Sub(a.doubtedAt)
	return a.asked && !a.certain && a.rising.resting && (away == 0 || away >= stayedAway)
}

// Certain tells whether it is known what a burst is.
func (a *Account) Certain() bool { return a.certain }

// Rising tells whether the newest look showed what may be a burst, which takes another one, a second later, to be learned.
func (a *Account) Rising() bool { return a.rising.start != nil }

// Refuted tells whether the sessions in doubt that ended before the last look but one were no logins: no look saw them, so that they
// would have logged in after the one before that at the earliest, and nothing has risen since then.
func (a *Account) Refuted() bool { return a.still >= toRefute }

// Settled tells whether it is known where the next rise begins. If not, a look that shows rest, a second later, tells.
func (a *Account) Settled() bool { return a.settled }

// judge explains a rise, or does not. While counters rise, the rest of a burst may be yet to come, and hide a login as well.
func (a *Account) judge(look Look, total map[string]int64) Finding {
	at, resting := look.At, a.rising.resting
	a.bursting = a.bursting || largest(total) > int64(a.doubtful)
	explained := len(total) == 0 || resting && !a.spent && int64(a.crowd) < largest(a.burst) && a.explains(total, at.Sub(a.sinceAt), look.Remembers)
	if !explained && !a.spent && at.Sub(a.began) < longestDoubt && a.bursting && (!resting || !a.certain) {
		return FindingDoubt
	}
	if !explained && a.bursting && a.learnedAt.Before(a.began) { // bursts have become others
		a.burst, a.certain = nil, false
	}
	a.since, a.sinceAt, a.settled, a.doubtful, a.bursting, a.spent, a.crowd = look.Ledger, at, resting, 0, false, false, 0
	if explained {
		return FindingNone
	}
	return FindingUse
}

// learn finds out what a burst is: what rises from a look that shows rest until two have shown it again, since a busy server may
// take a break within one. Sessions that may have been logins can have had a part in it if they ended meanwhile, or their reports
// came by the first of the two: then it teaches nothing, unless they were like others that were none.
func (a *Account) learn(look Look, step map[string]int64, watched bool) {
	r, unlike := &a.rising, look.Doubtful-look.Alike
	switch {
	case len(step) != 0 && r.start == nil:
		r.start, r.doubtful, r.unlike, r.whole = a.last, look.Doubtful, unlike, watched && r.resting
	case len(step) != 0:
		r.doubtful, r.unlike = r.doubtful+look.Doubtful, r.unlike+unlike
		r.whole = r.whole && watched && (!r.resting || r.unlike == 0) // after a break it may be another one
	case r.start == nil:
	case !r.resting:
		r.doubtful, r.unlike = r.doubtful+look.Doubtful, r.unlike+unlike
		r.whole = r.whole && watched
		rises, _ := r.start.rise(look.Ledger)
		a.spent = a.spent || int64(r.doubtful) >= largest(rises)
		a.crowd = max(a.crowd, r.doubtful)
	default:
		if r.whole && watched && r.unlike == 0 {
			a.conclude(look.Ledger)
		}
		r.start = nil
	}
	r.resting = len(step) == 0
}

// conclude learns from a rise that has ended.
func (a *Account) conclude(now Ledger) {
	if whole, _ := a.rising.start.rise(now); largest(whole) >= fewestInBurst {
		a.certain = maps.Equal(a.burst, whole)
		a.burst, a.learnedAt = whole, a.lastAt
	}
}

func largest(rises map[string]int64) int64 {
	var most int64
	for _, rise := range rises {
		most = max(most, rise)
	}
	return most
}

// Explains tells whether the exporter alone can have made the counters rise from one look to another, within so much time.
func (a *Account) Explains(before, after Ledger, within, remembers time.Duration) bool {
	rises, comparable := before.rise(after)
	return comparable && (len(rises) == 0 || a.explains(rises, within, remembers))
}

// explains tells whether a rise is a whole number of bursts, and of no more than there can have been.
func (a *Account) explains(total map[string]int64, within, remembers time.Duration) bool {
	count := int64(0)
	for name, rise := range a.burst {
		if count == 0 {
			count = total[name] / rise
		}
		if count == 0 || total[name] != count*rise {
			return false
		}
	}
	// One may have begun before that time, and one more is asked for at its end.
	return len(total) == len(a.burst) && count <= int64(within/max(remembers, shortestMemory))+2
}

// rise is by how much the counters of the databases have risen, the maintenance database and those that have not aside. It is
// not comparable if a database has come or gone or a counter was reset.
func (l Ledger) rise(after Ledger) (rises map[string]int64, comparable bool) {
	rises = map[string]int64{}
	for name, now := range after {
		before, known := l[name]
		if !known || now.Reset != before.Reset || now.Sessions < before.Sessions {
			return nil, false
		}
		if difference := now.Sessions - before.Sessions; difference != 0 && name != maintenanceDatabase {
			rises[name] = difference
		}
	}
	return rises, len(l) == len(after)
}
