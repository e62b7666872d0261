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
		expect(t, w, "keep-awake-until", person, func(w *world) string { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] })
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
		expect(t, w, "keep-awake-until", until, func(w *world) string { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] })
	})
}
