package control

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// memoryOf is an exporter that logs in when it is scraped, but not again for as long as it remembers.
func memoryOf(remembers time.Duration) func(*world) {
	var asked time.Time
	return func(w *world) {
		if now := time.Now(); now.Sub(asked) >= remembers {
			asked = now
			w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + 15}
		}
	}
}

// Somebody tries a wrong password over TLS every five seconds, from the start on.
func TestKnocksBesideTheExporterDoNotDelaySleep(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		every     time.Duration // between two scrapes by somebody else
		remembers time.Duration
		phase     time.Duration // of the first of these
	}{
		{"scraped every fifteen seconds", 15 * time.Second, 30 * time.Second, 3 * time.Second},
		{"at the moment of a knock", 15 * time.Second, 30 * time.Second, 5 * time.Second},
		{"just before the first look", 15 * time.Second, 30 * time.Second, 0},
		{"every minute", time.Minute, 30 * time.Second, 7 * time.Second},
		{"without a memory", 15 * time.Second, 0, 3 * time.Second},
		{"by nobody", time.Hour, 30 * time.Second, time.Hour},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { w.scraped = memoryOf(row.remembers) }, func(t *testing.T, w *world, loop *Loop) {
				next := time.Now().Add(row.phase)
				view := healthy()
				view.Annotations[idle.KeyInactivityMinutes] = "1"
				if row.phase == 0 {
					w.with(w.scraped)
				}
				loop.See(view)
				for second := range 63 {
					if !time.Now().Before(next) {
						next = next.Add(row.every)
						w.with(w.scraped)
					}
					if second%5 == 4 {
						w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
					}
					wait(time.Second)
				}
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
		{"once if that teaches it", memoryOf(0), true, 1},
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
