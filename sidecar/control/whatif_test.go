package control

import (
	"maps"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func observe(w *world) { w.view.Annotations[contract.AnnotationEnabled] = contract.EnabledObserve }

// wouldHaveSlept is for how long the cluster would have slept at its own threshold.
func wouldHaveSlept(w *world) time.Duration {
	return w.status.WhatIf.Own.Total(time.Now()).Round(2 * time.Second)
}

func TestLoop_anObservedClusterIsLeftAlone(t *testing.T) {
	t.Parallel()
	liveAfter(t, observe, func(t *testing.T, w *world, loop *Loop) {
		before := maps.Clone(w.view.Annotations)
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		keepAwake(w)
		wait(time.Hour - 10*time.Second)
		expect(t, w, "time asleep while kept awake", 0, wouldHaveSlept)
		expect(t, w, "reason", idle.ReasonKeepAwakeUntil, func(w *world) idle.Reason { return w.status.Decision.Reason })
		wait(time.Minute)
		expect(t, w, "time asleep", 50*time.Second, wouldHaveSlept)
		expect(t, w, "reason", idle.ReasonObserved, func(w *world) idle.Reason { return w.status.Decision.Reason })
		w.with(func(w *world) { w.inUse = true })
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "time asleep, in use", 50*time.Second, wouldHaveSlept)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "written to the Cluster", true, func(w *world) bool {
			return maps.Equal(w.view.Annotations, before) && len(w.announcements) == 0 && w.suspended == 0
		})
		expect(t, w, "saved", 1, func(w *world) int { return w.counts.Own.Count })
	})
}

func TestLoop_anObservedClusterWouldNotSleepDuringABackup(t *testing.T) {
	t.Parallel()
	liveAfter(t, observe, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.backups = []string{"b"} })
		loop.Deliver(w.seen())
		wait(10 * time.Minute)
		expect(t, w, "time asleep during the Backup", 0, wouldHaveSlept)
		expect(t, w, "reason", idle.ReasonBackupRunning, func(w *world) idle.Reason { return w.status.Decision.Reason })
		w.with(func(w *world) { w.backups = nil })
		wait(time.Minute)
		expect(t, w, "counts a sleep", 1, func(w *world) int { return w.status.WhatIf.Own.Count })
	})
}

func TestLoop_countsGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		observe(w)
		w.counts = idle.WhatIf{
			At: make([]idle.Sleeps, len(idle.Thresholds())), Own: idle.Sleeps{Count: 3, Lasted: time.Hour},
			Decided: time.Now().Add(-time.Hour), Reason: idle.ReasonActive, Observed: 2 * time.Hour,
		}
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(40 * time.Second)
		expect(t, w, "sleeps", 4, func(w *world) int { return w.status.WhatIf.Own.Count })
		expect(t, w, "the time of which nothing is known is not observed", true,
			func(w *world) bool { return w.status.WhatIf.Observed < 2*time.Hour+time.Minute })
	})
}

func TestLoop_aStandbyCountsNothing(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		observe(w)
		w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2"
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(time.Hour)
		expect(t, w, "observed", 0, func(w *world) time.Duration { return w.status.WhatIf.Observed })
	})
}

// What a person writes meanwhile overrides a request over the channel that is not written.
func TestLoop_aPersonKeepsAnObservedClusterAwake(t *testing.T) {
	t.Parallel()
	liveAfter(t, observe, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		keepAwake(w)
		wait(time.Minute)
		until := time.Now().Add(5 * time.Hour).UTC().Truncate(time.Second)
		w.with(func(w *world) {
			w.view.Annotations = maps.Clone(w.view.Annotations)
			w.view.Annotations[contract.AnnotationKeepAwakeUntil] = until.Format(time.RFC3339)
		})
		loop.Deliver(w.seen())
		wait(2 * time.Hour)
		expect(t, w, "kept awake until", until, func(w *world) time.Time { return w.status.Policy.KeepAwakeUntil.UTC() })
		wait(4 * time.Hour)
		expect(t, w, "reason", idle.ReasonObserved, func(w *world) idle.Reason { return w.status.Decision.Reason })
	})
}
