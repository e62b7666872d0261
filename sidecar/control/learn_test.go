package control

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// memoryOf is an exporter that logs in when it is scraped, but not again for as long as it remembers.
func memoryOf(remembers time.Duration) func(*world) {
	var asked time.Time
	return func(w *world) {
		if now := time.Now(); now.Sub(asked) > remembers {
			asked = now
			w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + 15}
		}
	}
}

// Somebody tries a wrong password over TLS every five seconds, and somebody scrapes the exporter, whenever both of them began.
func TestKnocksBesideTheExporterDoNotDelaySleep(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		every     time.Duration // between two scrapes by somebody else
		remembers time.Duration
	}{
		{"scraped every fifteen seconds", 15 * time.Second, 30 * time.Second},
		{"every fifteen seconds, just after what it remembers", 15 * time.Second, 29 * time.Second},
		{"every fourteen", 14 * time.Second, 30 * time.Second},
		{"every minute", time.Minute, 30 * time.Second},
		{"without a memory", 15 * time.Second, 0},
		{"by nobody", time.Hour, 30 * time.Second},
	} {
		for begun := range min(row.every, time.Minute) / time.Second {
			for knocked := range 5 {
				for _, first := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, from %d s, knocks from %d s, knock first %v", row.rule, begun, knocked, first), func(t *testing.T) {
						t.Parallel()
						besideKnocks(t, row.every, row.remembers, begun*time.Second, knocked, first)
					})
				}
			}
		}
	}
}

// besideKnocks lets a minute pass; with first, a knock comes before a scrape of the same second.
func besideKnocks(t *testing.T, every, remembers, begun time.Duration, knocked int, first bool) {
	t.Helper()
	liveAfter(t, func(w *world) { w.scraped = memoryOf(remembers) }, func(t *testing.T, w *world, loop *Loop) {
		next := time.Now().Add(begun)
		view := healthy()
		view.Annotations[idle.KeyInactivityMinutes] = "1"
		loop.See(view)
		knock := func(second int) {
			if second%5 == knocked {
				w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
				wait(100 * time.Millisecond)
			}
		}
		wait(100 * time.Millisecond)
		for second := range 64 {
			at := time.Now()
			if first {
				knock(second)
			}
			if !at.Before(next) {
				next = next.Add(every)
				w.with(w.scraped)
			}
			if !first {
				knock(second)
			}
			wait(time.Until(at.Add(time.Second)))
		}
		expect(t, w, "asleep", true, asleep)
	})
}

// The first look that has to be compared with may be taken while the exporter logs in, and the one after it, when somebody knocks,
// shows the rest of that.
func TestAScrapeThatTheFirstLookMeetsDoesNotDelaySleep(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		before func(*world)
	}{
		{"when the worker has begun", func(*world) {}},
		{"when the server could not be asked for a while", func(w *world) {
			w.with(func(w *world) { w.broken = true })
			wait(2 * time.Minute)
			w.with(func(w *world) { w.broken = false })
		}},
		{"when a session has lasted long", func(w *world) {
			w.with(func(w *world) { w.inUse, w.stateChanged = true, time.Now() })
			wait(10 * time.Minute)
			w.leave()
		}},
		{"when short sessions came one after the other", func(w *world) {
			for range 20 {
				wait(time.Second)
				w.report(activity.Ended{Peer: peer, Sent: 700, At: time.Now()})
			}
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { w.scraped = memoryOf(30 * time.Second) }, func(t *testing.T, w *world, loop *Loop) {
				view := healthy()
				view.Annotations[idle.KeyInactivityMinutes] = "1"
				loop.See(view)
				row.before(w)
				for samples := w.looks(); w.looks() == samples; {
					wait(100 * time.Millisecond)
				}
				wait(500 * time.Millisecond)
				w.with(func(w *world) { w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + 8} })
				for second := range 64 {
					wait(time.Second)
					if second%5 == 4 {
						w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
					}
				}
				expect(t, w, "asleep", true, asleep)
			})
		})
	}
}

// Somebody else's scrapes may always come a second before somebody knocks, and those that are to teach be answered from memory.
func TestABurstThatIsOverBeforeTheNextKnockIsLearned(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.scraped = func(*world) {} }, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Annotations[idle.KeyInactivityMinutes] = "1"
		loop.See(view)
		const before = 1200 * time.Millisecond
		scraped := memoryOf(0)
		for n := range 13 {
			after := 5 * time.Second
			if n == 1 { // the looks, a second apart, begin with the first knock
				after -= 300 * time.Millisecond
			}
			wait(after - before)
			if n%6 == 0 {
				w.with(scraped)
			}
			wait(before)
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
		}
		expect(t, w, "asleep", true, asleep)
	})
}

// Scrapes and knocks that begin at any moment drift against each other, and a scrape logs in for as long as it happens to take.
func TestKnocksBesideScrapesThatDriftDoNotDelaySleep(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
			var asked time.Time
			scraped := func(w *world) {
				if time.Since(asked) <= 30*time.Second {
					return
				}
				takes := upTo(600 * time.Millisecond)
				asked = time.Now().Add(takes)
				for n := range time.Duration(15) {
					time.AfterFunc(takes*n/15, func() {
						w.with(func(w *world) { w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + 1} })
					})
				}
			}
			liveAfter(t, func(w *world) { w.scraped = scraped }, func(t *testing.T, w *world, loop *Loop) {
				view := healthy()
				view.Annotations[idle.KeyInactivityMinutes] = "1"
				over := false
				defer func() { over = true }()
				every := func(first, period time.Duration, act func()) {
					var again func()
					again = func() {
						if !over {
							act()
							time.AfterFunc(period, again)
						}
					}
					time.AfterFunc(first, again)
				}
				every(upTo(15*time.Second), 15*time.Second+upTo(300*time.Millisecond), func() { w.with(scraped) })
				every(upTo(5*time.Second), 5*time.Second+upTo(100*time.Millisecond), func() {
					w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
				})
				loop.See(view)
				wait(67 * time.Second)
				expect(t, w, "asleep", true, asleep)
			})
		})
	}
}

func TestTheExporterIsScrapedWhereThatTeachesSomething(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		scraped func(*world)
		knocks  bool
		want    int // scrapes in half an hour
	}{
		{"never while nobody knocks", memoryOf(0), false, 0},
		{"twice if that teaches it, to be certain", memoryOf(0), true, 2},
		{"not again for an hour if two minutes have taught nothing", func(*world) {}, true, lessonsAtOnce},
		{"nor if it cannot be scraped", nil, true, lessonsAtOnce},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { w.scraped = row.scraped }, func(t *testing.T, w *world, loop *Loop) {
				view := healthy()
				view.Annotations[idle.KeyInactivityMinutes] = "60"
				loop.See(view)
				for range 360 {
					wait(5 * time.Second)
					if row.knocks {
						w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
					}
				}
				expect(t, w, "scrapes", row.want, func(w *world) int { return w.scrapes })
			})
		})
	}
}

func TestSessionsInDoubtAreBounded(t *testing.T) {
	t.Parallel()
	var doubtful []activity.Ended
	for range 3 * mostDoubtful {
		doubtful = appendBounded(doubtful, activity.Ended{})
	}
	if len(doubtful) != mostDoubtful {
		t.Errorf("%d are kept", len(doubtful))
	}
}
