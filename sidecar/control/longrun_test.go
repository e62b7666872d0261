package control

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// Whatever happens beside an idle database, without a client, must not move its clock.
func TestLoop_sleepsInEverySteadyModeOnceTheThresholdHasPassed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		silent  bool // the kernel reports nothing
		prepare func(*world)
		minute  func(*world, *Loop, int) // what happens every minute
	}{
		{"the kernel reports the sessions that end", false, nil, nil},
		{"the kernel reports nothing", true, nil, nil},
		{"the kernel reports nothing, and probes log in to the maintenance database", true, nil, func(w *world, _ *Loop, minute int) {
			w.with(func(w *world) { w.ledger["postgres"] = activity.Database{Sessions: int64(minute)} })
		}},
		{"a session that rests, with activity=queries", false, func(w *world) {
			w.view.Annotations[contract.AnnotationActivity] = contract.ActivityQueries
			w.inUse, w.stateChanged = true, time.Now()
		}, nil},
		{"a session that is ignored", false, func(w *world) {
			w.view.Annotations[contract.AnnotationIgnore] = "user=app"
			w.inUse, w.stateChanged = true, time.Now()
		}, nil},
		{"a LISTEN that is refused", false, nil, func(w *world, _ *Loop, _ int) {
			if failed := w.listenFailed(); failed != nil {
				failed(&postgres.RefusedError{Database: "app", Code: "42501", Err: errors.New("refused")})
			}
		}},
		{"the slot replicators of standbys", false, func(w *world) {
			w.view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("192.0.2.2")}
		}, func(w *world, _ *Loop, _ int) {
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("192.0.2.2:2"), Received: 3258, At: time.Now()})
		}},
		{"changes of the Cluster's status", false, nil, func(w *world, loop *Loop, _ int) { loop.Deliver(w.seen()) }},
		{"a change of the specification every ten minutes", false, nil, func(w *world, loop *Loop, minute int) {
			if minute%10 == 0 {
				w.with(func(w *world) { w.view.Generation++ })
				loop.Deliver(w.seen())
			}
		}},
		{"an unhealthy phase of some seconds every ten minutes", false, nil, unhealthyEveryTenMinutes},
		{"the same where the kernel reports nothing", true, nil, unhealthyEveryTenMinutes},
		{"the same where each LISTEN may have missed a notification", false, func(w *world) { w.misses = true }, unhealthyEveryTenMinutes},
	} {
		for _, threshold := range []time.Duration{30 * time.Minute, 24 * time.Hour} {
			if row.silent && threshold > time.Hour {
				continue // a sample every second: nothing recurs more rarely than the attempt to watch, every five minutes
			}
			t.Run(row.rule+", "+threshold.String(), func(t *testing.T) {
				t.Parallel()
				liveAfter(t, func(w *world) {
					w.view.Annotations[contract.AnnotationInactivityMinutes] = map[time.Duration]string{30 * time.Minute: "30", 24 * time.Hour: "1440"}[threshold]
					w.silent = row.silent
					if row.prepare != nil {
						row.prepare(w)
					}
				}, func(t *testing.T, w *world, loop *Loop) {
					loop.Deliver(w.seen())
					began := time.Now()
					for minute := 1; time.Since(began) < threshold-2*time.Minute; minute++ {
						wait(time.Minute)
						if row.minute != nil {
							row.minute(w, loop, minute)
							wait(0)
						}
					}
					expect(t, w, "asleep before the threshold", false, asleep)
					wait(4 * time.Minute)
					expect(t, w, "asleep after the threshold", true, asleep)
				})
			})
		}
	}
}

func unhealthyEveryTenMinutes(w *world, loop *Loop, minute int) {
	if minute%10 != 0 {
		return
	}
	for _, isHealthy := range []bool{false, true} {
		w.with(func(w *world) { w.view.Healthy = isHealthy })
		loop.Deliver(w.seen())
		wait(5 * time.Second)
	}
}

// A session counts also if it comes and goes while the Cluster is not healthy.
func TestLoop_watchesAnUnhealthyCluster(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(20 * time.Second)
		w.with(func(w *world) { w.view.Healthy = false })
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "asleep while unhealthy", false, asleep)
		expect(t, w, "it listens", true, func(w *world) bool { return w.listening })
		ended := time.Now()
		w.report(activity.Ended{Peer: netip.MustParseAddrPort("192.0.2.3:1"), Received: 700, At: ended})
		wait(5 * time.Second)
		w.with(func(w *world) { w.view.Healthy = true })
		loop.Deliver(w.seen())
		wait(20 * time.Second)
		expect(t, w, "asleep 25 seconds after the session", false, asleep)
		wait(10 * time.Second)
		expect(t, w, "asleep afterwards", true, asleep)
	})
}
