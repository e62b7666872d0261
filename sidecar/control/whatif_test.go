package control

import (
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
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

// The pod that makes way for hibernation leaves its counts on the Cluster, and the one that is made at the wake
// continues from there.
func TestLoop_countsContinueAfterHibernation(t *testing.T) {
	t.Parallel()
	var counts string
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(40 * time.Second)
		expect(t, w, "asleep", true, asleep)
		counts = w.seen().Counts
		expect(t, w, "counted before it slept", 0, func(w *world) int { return w.status.WhatIf.Own.Count })
	})
	parsed, err := idle.ParseWhatIf([]byte(counts))
	if err != nil {
		t.Fatal(err)
	}
	const slept = 2*time.Hour - 30*time.Second
	for _, row := range []struct {
		rule         string
		last         contract.LastWake
		lasted, wake time.Duration
	}{
		{"it has slept until the client woke it", contract.LastWake{By: "10.1.2.3", Since: parsed.Hibernated}, slept, 20 * time.Second},
		{
			"nobody waited for a wake at the beginning of a window",
			contract.LastWake{Cause: contract.CauseWindow, By: "x", Since: parsed.Hibernated}, slept, 0,
		},
		{"of a wake by hand, nothing says when it was", contract.LastWake{}, 0, 0},
		{
			"nor of one before another hibernation, which left no counts",
			contract.LastWake{By: "10.1.2.3", Since: "2000-01-01T01:30:00Z"}, 0, 0,
		},
		{
			"the sleep that a client ended was a doze, which was counted in another pod",
			contract.LastWake{By: "10.1.2.3", Depth: contract.DepthDoze}, 0, 0,
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				time.Sleep(2 * time.Hour) // the bubble's clock
				w.view.Counts, w.broken = counts, true
				if row.last.By == "" {
					return
				}
				last := row.last
				last.At = time.Now()
				wake, err := last.Encode()
				if err != nil {
					t.Fatal(err)
				}
				w.view.Annotations[contract.AnnotationLastWake] = wake
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(19 * time.Second)
				w.with(func(w *world) { w.broken, w.inUse = false, true })
				wait(time.Minute)
				expect(t, w, "sleeps", row.lasted != 0, func(w *world) bool { return w.status.WhatIf.Own.Count == 1 })
				expect(t, w, "time asleep", row.lasted, wouldHaveSlept)
				expect(t, w, "duration of the wake", row.wake, func(w *world) time.Duration {
					return time.Duration(w.status.WhatIf.Report().WakeSeconds * float64(time.Second)).Round(2 * time.Second)
				})
				expect(t, w, "sleeps at one hour", row.lasted != 0, func(w *world) bool { return w.status.WhatIf.At[3].Count == 1 })
			})
		})
	}
}

// Counts that another pod has left some seconds ago are not continued without a gap, because nothing says what happened.
func TestLoop_countsContinueWithAGap(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		left, err := json.Marshal(idle.WhatIf{
			At: make([]idle.Sleeps, len(idle.Thresholds())), Own: idle.Sleeps{Count: 1, Since: time.Now().Add(-time.Hour)},
			Decided: time.Now().Add(-10 * time.Second), IdleSince: time.Now().Add(-2 * time.Hour), Hibernated: "x",
		})
		if err != nil {
			t.Fatal(err)
		}
		w.view.Counts = string(left)
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(5 * time.Second)
		expect(t, w, "time asleep", time.Hour-10*time.Second, wouldHaveSlept)
		expect(t, w, "observed before", true, func(w *world) bool { return w.status.WhatIf.Observed < 10*time.Second })
	})
}

// A node whose clock is wrong knows that once an announcement was answered.
func TestCounts_knowAWakeByTheClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)
	for _, ahead := range []time.Duration{-time.Minute, 0, time.Minute} {
		c := counts{newest: idle.WhatIf{
			At: make([]idle.Sleeps, len(idle.Thresholds())), Threshold: time.Minute,
			Decided: now.Add(-time.Hour), IdleSince: now.Add(-2 * time.Hour),
		}}
		wake, err := contract.LastWake{At: now.Add(ahead - 4*time.Second), By: "10.1.2.3", Depth: contract.DepthDoze}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		v := kubernetes.View{Annotations: map[string]string{contract.AnnotationLastWake: wake}}
		got, woken := c.resume(v, apiClock{ahead: ahead}, now)
		if !woken || got.Observed != time.Hour-4*time.Second || len(got.Wakes) != 1 || got.Wakes[0] != 4*time.Second {
			t.Errorf("%s ahead: woken %t, %+v", ahead, woken, got)
		}
	}
}

func TestLoop_aDozeIsASleep(t *testing.T) {
	t.Parallel()
	liveAfter(t, dozes, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "dozing", true, dozing)
		wait(30 * time.Second)
		wake, err := contract.LastWake{At: time.Now(), By: "10.1.2.3", Depth: contract.DepthDoze}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		w.with(func(w *world) {
			w.inUse = true
			w.view.Annotations = maps.Clone(w.view.Annotations)
			w.view.Annotations[contract.AnnotationLastWake] = wake
			w.unfence()
		})
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "sleeps", 1, func(w *world) int { return w.status.WhatIf.Own.Count })
		expect(t, w, "time asleep", time.Minute, wouldHaveSlept)
	})
}

// What only another threshold would ask for is not asked: neither the other instances nor for Backups.
func TestLoop_countsOtherThresholdsFromWhatIsKnown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		before func(*world)
		want   time.Duration
	}{
		{"a cluster of one instance would sleep", func(*world) {}, 5 * time.Minute},
		{"of a Backup nothing is known", func(w *world) { w.backups = []string{"b"} }, 5 * time.Minute},
		{"standbys that were not asked may be in use", func(w *world) { besides(w, func(*contract.Report) {}) }, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				w.view.Annotations[contract.AnnotationInactivityMinutes] = "60"
				row.before(w)
				if answers := w.answers; answers != nil {
					w.answers = func(sampled bool) []siblingAnswer { w.asked++; return answers(sampled) }
				}
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(10 * time.Minute)
				expect(t, w, "time asleep at 5 minutes", row.want, func(w *world) time.Duration {
					return w.status.WhatIf.At[0].Total(time.Now()).Round(2 * time.Second)
				})
				expect(t, w, "asked", 0, func(w *world) int { return w.asked })
				expect(t, w, "reason", idle.ReasonWaiting, func(w *world) idle.Reason { return w.status.Decision.Reason })
			})
		})
	}
}
