package control

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// resting sets up a world with a session that does not count, so that one is opened to terminate it.
func resting(w *world) {
	w.view.Annotations[contract.AnnotationActivity] = "queries"
	w.inUse, w.stateChanged = true, time.Now()
}

func TestDrive_noTerminatorOutlivesTheAttempt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		make func(*world)
		want sleep.Result
	}{
		{"hibernation is on", func(*world) {}, sleep.ResultSuccess},
		{"the Cluster has changed meanwhile", func(w *world) { w.conflict = true }, sleep.ResultConflict},
		{"opening it takes longer than the announcement holds", func(w *world) { w.terminatorTakes = 30 * time.Second }, sleep.ResultAborted},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			prepare := func(w *world) { resting(w); row.make(w) }
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(75 * time.Second)
				expect(t, w, "an attempt came to its end", true, func(w *world) bool { return len(w.results) != 0 })
				expect(t, w, "result", row.want, func(w *world) sleep.Result { return w.results[0] })
				expect(t, w, "asleep", row.want == sleep.ResultSuccess, asleep)
				expect(t, w, "open terminators", 0, func(w *world) int { return w.terminators })
			})
		})
	}
}

func TestDrive_theSwitchFollowsTheLastSampleClosely(t *testing.T) {
	t.Parallel()
	var sampled time.Time
	prepare := func(w *world) {
		resting(w)
		w.terminatorTakes = 2 * time.Second
		w.inSample = func(w *world) {
			if w.hibernated.IsZero() {
				sampled = time.Now()
			}
		}
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(45 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "a session is ended", 1, func(w *world) int { return len(w.terminated) })
		expect(t, w, "closely", true, func(w *world) bool { return w.hibernated.Sub(sampled) < 200*time.Millisecond })
	})
}

func TestDrive_aUseDuringAnAttemptIsNoBlockerOfTheNext(t *testing.T) {
	t.Parallel()
	used := false
	prepare := func(w *world) {
		resting(w)
		w.inSample = func(w *world) {
			if !used && w.suspended != 0 && w.suspended >= w.resumed { // the session is idle again when it is sampled
				used, w.stateChanged = true, time.Now()
			}
		}
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(2 * time.Minute)
		expect(t, w, "the first attempt", sleep.ResultAborted, func(w *world) sleep.Result { return w.results[0] })
		expect(t, w, "an Event says that it is kept awake", false, func(w *world) bool { return slices.Contains(w.events, "SleepBlocked") })
	})
}

func TestDrive_theMarkerIsLeftBeforeTheSwitch(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(35 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "the marker was left before", true, func(w *world) bool { return w.markerFirst })
	})
}

// The next patch requires the resourceVersion of the state in an answer, so the machine must know that state.
func TestDrive_anAnswerToAnotherPatchReachesTheMachine(t *testing.T) {
	t.Parallel()
	prepare := func(w *world) {
		w.gatewayAway = true
		w.view.Annotations[contract.AnnotationKeepAwakeUntil] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		w.view.KeepAwakeOurs = true
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(35 * time.Second)
		w.with(func(w *world) {
			if w.view.Annotations[contract.AnnotationAnnounced] == "" || len(w.results) != 0 {
				t.Error("no attempt is under way")
			}
			w.view.Annotations = maps.Clone(w.view.Annotations)
			delete(w.view.Annotations, contract.AnnotationAnnounced) // and the watch lags
		})
		w.notification()(postgres.Notification{Kind: postgres.KindRelease, At: time.Now()})
		wait(time.Second)
		expect(t, w, "reason", idle.ReasonGatewayUnavailable, func(w *world) idle.Reason { return w.status.Decision.Reason })
		expect(t, w, "attempts that ended", 1, func(w *world) int { return len(w.results) })
	})
}

// The next step may be a minute away, and the worker may have ended by then.
func TestDrive_keepAwakeIsWrittenAfterTheSampleThatItArrivesIn(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		asked := false
		w.with(func(w *world) {
			w.inSample = func(w *world) {
				if w.notify != nil && !asked { // the listener has connected
					asked = true
					w.notify(postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour, At: time.Now()})
				}
			}
		})
		loop.Deliver(w.seen())
		for heard := false; !heard; w.with(func(*world) { heard = asked }) {
			wait(time.Second)
		}
		wait(2 * time.Second)
		expect(t, w, "written", true, func(w *world) bool { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] != "" })
	})
}

func TestDrive_keepAwakeHoldsForTheSampleThatItArrivesIn(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		asked := false
		w.with(func(w *world) {
			w.inSample = func(w *world) {
				if w.suspended != 0 && !asked {
					asked = true
					w.notify(postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour, At: time.Now()})
				}
			}
		})
		loop.Deliver(w.seen())
		wait(40 * time.Second)
		expect(t, w, "asked for in the last sample", true, func(*world) bool { return asked })
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "reason", idle.ReasonKeepAwakeUntil, func(w *world) idle.Reason { return w.status.Decision.Reason })
	})
}
