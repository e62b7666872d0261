package control

import (
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// keepAwake requests over the channel to stay awake for an hour.
func keepAwake(w *world) {
	w.notification()(postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour, At: time.Now()})
}

func keepAwakeUntil(w *world) string { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] }

func TestKeepAwake_aPrimaryNoMoreLeavesTheRequestAlone(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		w.with(func(w *world) { w.conflict = true })
		keepAwake(w)
		wait(time.Second)
		w.with(func(w *world) { w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2" })
		loop.Deliver(w.seen())
		before := w.sampled()
		wait(time.Minute)
		if samples := w.sampled() - before; samples > 10 {
			t.Errorf("%d samples in a minute", samples)
		}
	})
}

func TestKeepAwake_leavesWhatAPersonWroteMeanwhile(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		person := time.Now().Add(50 * time.Hour).UTC().Format(time.RFC3339)
		w.with(func(w *world) { w.conflict = true })
		keepAwake(w)
		wait(time.Second)
		w.with(func(w *world) {
			w.conflict = false
			w.view.Annotations = map[string]string{contract.AnnotationEnabled: "true", contract.AnnotationKeepAwakeUntil: person}
		})
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "keep-awake-until", person, keepAwakeUntil)
	})
}

func TestKeepAwake_isWrittenOnceItCan(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		w.with(func(w *world) { w.conflict = true })
		keepAwake(w)
		wait(3 * time.Second)
		w.with(func(w *world) { w.conflict = false })
		wait(time.Minute)
		expect(t, w, "keep-awake-until", until, keepAwakeUntil)
	})
}

func TestKeepAwake_aReleaseTakesBackOnlyWhatTheChannelWrote(t *testing.T) {
	t.Parallel()
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	release := postgres.Notification{Kind: postgres.KindRelease}
	hour := postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour}
	for _, row := range []struct {
		rule   string
		person time.Duration // until when a person keeps it awake; zero: not at all
		sent   []postgres.Notification
		kept   time.Duration // zero: no annotation is left
	}{
		{"its own time is gone", 0, []postgres.Notification{hour, release}, 0},
		{"a person's time stays", 24 * time.Hour, []postgres.Notification{release}, 24 * time.Hour},
		{"also after a shorter one of the channel's", 24 * time.Hour, []postgres.Notification{hour, release}, 24 * time.Hour},
		{"and what the channel has made longer", 30 * time.Minute, []postgres.Notification{hour, release}, time.Hour},
		{"a person's time that has passed is nobody's", -time.Hour, []postgres.Notification{hour, release}, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				began := time.Now()
				if row.person != 0 {
					w.with(func(w *world) { w.view.Annotations[contract.AnnotationKeepAwakeUntil] = in(row.person) })
				}
				loop.Deliver(w.seen())
				wait(10 * time.Second)
				want := ""
				if row.kept != 0 {
					want = in(row.kept - time.Since(began))
				}
				for _, n := range row.sent {
					if n.At = time.Now(); n.Kind == postgres.KindKeepAwake && row.kept == n.For {
						want = in(n.For)
					}
					w.notification()(n)
					wait(10 * time.Second)
				}
				expect(t, w, "keep-awake-until", want, keepAwakeUntil)
			})
		})
	}
}

func TestKeepAwake_isExtendedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		w.with(func(w *world) { w.keepAwakeLost = true })
		keepAwake(w)
		wait(time.Second)
		until := time.Now().Add(2 * time.Hour)
		w.notification()(postgres.Notification{Kind: postgres.KindKeepAwake, For: 2 * time.Hour, At: time.Now()})
		wait(0)
		loop.Deliver(w.seen()) // what was written although its answer was lost
		wait(time.Minute)
		expect(t, w, "keep-awake-until", until.UTC().Format(time.RFC3339), keepAwakeUntil)
	})
}

func TestKeepAwake_isReleasedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		w.with(func(w *world) { w.keepAwakeLost = true })
		keepAwake(w)
		wait(time.Second)
		w.notification()(postgres.Notification{Kind: postgres.KindRelease, At: time.Now()})
		wait(time.Minute)
		expect(t, w, "keep-awake-until", "", keepAwakeUntil)
	})
}

func TestKeepAwake_writesNoTimeAgainThatAPersonRemoves(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		keepAwake(w)
		wait(time.Second)
		w.notification()(postgres.Notification{Kind: postgres.KindRelease, At: time.Now()})
		wait(time.Second)
		person := func(value string) {
			w.with(func(w *world) {
				w.view.KeepAwakeOurs = false
				w.view.Annotations = map[string]string{contract.AnnotationEnabled: "true"}
				if value != "" {
					w.view.Annotations[contract.AnnotationKeepAwakeUntil] = value
				}
			})
			loop.Deliver(w.seen())
			wait(time.Second)
		}
		person(time.Now().Add(50 * time.Hour).UTC().Format(time.RFC3339))
		keepAwake(w) // which waits, because the release has just been written
		wait(time.Second)
		person("")
		wait(2 * time.Minute)
		expect(t, w, "keep-awake-until", "", keepAwakeUntil)
	})
}

func TestKeepAwake_aReleaseAndAShorterRequestInOneTransaction(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		keepAwake(w)
		wait(10 * time.Second)
		loop.Deliver(w.seen())
		until := time.Now().Add(30 * time.Minute)
		w.notification()(postgres.Notification{Kind: postgres.KindRelease, At: time.Now()})
		w.notification()(postgres.Notification{Kind: postgres.KindKeepAwake, For: 30 * time.Minute, At: time.Now()})
		wait(2 * time.Minute)
		expect(t, w, "keep-awake-until", until.UTC().Format(time.RFC3339), keepAwakeUntil)
	})
}

func TestKeepAwake_isWrittenAtOnceIfItDoublesWhatIsLeft(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		keepAwake(w)
		wait(10 * time.Second)
		loop.Deliver(w.seen())
		until := time.Now().Add(2 * time.Hour)
		w.notification()(postgres.Notification{Kind: postgres.KindKeepAwake, For: 2 * time.Hour, At: time.Now()})
		wait(time.Second)
		expect(t, w, "keep-awake-until", until.UTC().Format(time.RFC3339), keepAwakeUntil)
	})
}

func TestKeepAwake_isWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	for _, lasts := range []time.Duration{time.Hour, 90 * time.Second, 2 * time.Second} {
		live(t, func(t *testing.T, w *world, loop *Loop) {
			loop.Deliver(w.seen())
			wait(10 * time.Second)
			written := map[string]bool{}
			for range 600 { // ten minutes of an application that asks every second
				w.notification()(postgres.Notification{Kind: postgres.KindKeepAwake, For: lasts, At: time.Now()})
				wait(time.Second)
				w.with(func(w *world) { written[w.view.Annotations[contract.AnnotationKeepAwakeUntil]] = true })
			}
			if len(written) < 9 || len(written) > 11 {
				t.Errorf("for %s: written %d times in ten minutes", lasts, len(written))
			}
		})
	}
}
