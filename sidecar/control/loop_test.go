package control

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// expect compares the world's state with the expected one.
func expect[T comparable](t *testing.T, w *world, what string, want T, got func(*world) T) {
	t.Helper()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if have := got(w); have != want {
		t.Errorf("%s: %v, want %v (reason %s, results %v, events %v)", what, have, want, w.status.Decision.Reason, w.results, w.events)
	}
}

func asleep(w *world) bool { return !w.hibernated.IsZero() }

func TestLoop_anIdleClusterSleepsAfterItsThreshold(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.inUse = true })
		loop.Deliver(healthy())
		wait(time.Minute)
		expect(t, w, "asleep while in use", false, asleep)
		closed := time.Now()
		w.leave()
		wait(29 * time.Second)
		expect(t, w, "asleep before the threshold", false, asleep)
		wait(4 * time.Second)
		expect(t, w, "asleep after the threshold", true, asleep)
		expect(t, w, "at most a second late", true, func(w *world) bool {
			late := w.hibernated.Sub(closed.Add(30 * time.Second))
			return late >= 0 && late <= 1100*time.Millisecond
		})
		expect(t, w, "connected after the hibernation patch", false, func(w *world) bool { return w.connected })
		expect(t, w, "suspended", 1, func(w *world) int { return w.suspended })
		expect(t, w, "an Event is written", true, func(w *world) bool { return slices.Contains(w.events, "Hibernated") })
	})
}

func TestLoop_whatKeepsTheClusterAwake(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		make func(*world)
		want idle.Reason
	}{
		{"the feature is off", func(w *world) { w.view.Annotations[contract.AnnotationEnabled] = "false" }, idle.ReasonDisabled},
		{"an annotation is not understood", func(w *world) { w.view.Annotations[contract.AnnotationInactivityMinutes] = "soon" }, idle.ReasonInvalidAnnotation},
		{"another instance is primary", func(w *world) { w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2" }, idle.ReasonNotPrimary},
		{"a switchover is going on", func(w *world) { w.view.TargetPrimary = "c-2" }, idle.ReasonSwitchover},
		{"the cluster is unhealthy", func(w *world) { w.view.Healthy = false }, idle.ReasonUnhealthy},
		{"cannot sample the sessions", func(w *world) { w.broken = true }, idle.ReasonUnknown},
		{"PostgreSQL is shutting down", func(w *world) { w.shuttingDown = true }, idle.ReasonUnknown},
		{"a session is open", func(w *world) { w.inUse = true }, idle.ReasonActive},
		{"a Backup runs", func(w *world) { w.backups = []string{"b"} }, idle.ReasonBackupRunning},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				w.with(row.make)
				loop.Deliver(w.view)
				wait(5*time.Minute + time.Second)
				expect(t, w, "asleep", false, asleep)
				expect(t, w, "reason", row.want, func(w *world) idle.Reason { return w.status.Decision.Reason })
				look := time.Now()
				loop.Deliver(w.seen())
				wait(time.Second)
				expect(t, w, "decided after a change", true, func(w *world) bool { return !w.status.DecidedAt.Before(look) })
				expect(t, w, "suspended schedules stay suspended", true, func(w *world) bool { return w.suspended == 0 || w.resumed > 0 })
			})
		})
	}
}

func TestLoop_aTimeTooFarAheadIsTakenOnceItIsNear(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Annotations[contract.AnnotationKeepAwakeUntil] = time.Now().Add(contract.MaxKeepAwake + time.Hour).UTC().Format(time.RFC3339)
		loop.Deliver(view)
		wait(time.Minute)
		reason := func(w *world) idle.Reason { return w.status.Decision.Reason }
		expect(t, w, "reason", idle.ReasonInvalidAnnotation, reason)
		wait(time.Hour)
		expect(t, w, "reason once it is near enough", idle.ReasonKeepAwakeUntil, reason)
	})
}

func TestLoop_logsADecisionOnceWhileItIsPostponed(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.gatewayAway = true })
		loop.Deliver(w.seen())
		wait(2 * time.Minute)
		w.with(func(w *world) { w.log = nil })
		for range 20 {
			loop.Deliver(w.seen())
			wait(time.Second)
		}
		expect(t, w, "lines per sample", false, func(w *world) bool {
			return strings.Count(strings.Join(w.log, ""), "the decision has changed") > 3 // of an attempt meanwhile
		})
	})
}

func TestLoop_asksTheOtherInstancesBeforeItMayAttempt(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) {
			besides(w, func(*contract.Report) {})
			w.away = true // so that the schedules of the last sleep are not resumed yet
		})
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "sibling_unknown without a question", false, func(w *world) bool { return w.reasons[idle.ReasonSiblingUnknown] })
	})
}

func TestHandover_aSessionAtTheLastMomentWins(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		w.with(func(w *world) {
			w.inSample = func(w *world) { w.inUse = w.suspended != 0 && w.suspended >= w.resumed } // it comes while the schedules are suspended
		})
		wait(90 * time.Second)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "aborted", true, func(w *world) bool { return slices.Contains(w.results, sleep.ResultAborted) })
		expect(t, w, "an Event says that it is idle", false, func(w *world) bool { return slices.Contains(w.events, "SleepBlocked") })
		expect(t, w, "resumed what was suspended", true, func(w *world) bool { return w.resumed > 1 })
	})
}

func TestLoop_sleepsOnceTheAPIServerIsBack(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		wait(10 * time.Second)
		w.with(func(w *world) { w.away = true })
		wait(2 * time.Minute)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "not asked all the time", true, func(w *world) bool { return w.asked < 12 })
		w.with(func(w *world) { w.away = false })
		wait(31 * time.Second)
		expect(t, w, "asleep by itself", true, asleep)
	})
}

func TestHandover_aConflictIsTriedAgain(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.conflict = true })
		loop.Deliver(healthy())
		wait(33 * time.Second)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "resumed meanwhile", true, func(w *world) bool { return w.resumed > 1 })
		expect(t, w, "a marker is left", false, func(w *world) bool { return w.marker.left.Load() })
		w.with(func(w *world) { w.conflict = false })
		wait(10 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "a marker is left", true, func(w *world) bool { return w.marker.left.Load() })
	})
}

func TestLoop_aDrainClosesAtOnceAndEndsByItself(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		wait(5 * time.Second)
		expect(t, w, "connected", true, func(w *world) bool { return w.connected && w.listening })
		w.monitor.Drain()
		expect(t, w, "connected right after the drain", false, func(w *world) bool { return w.connected })
		wait(50 * time.Second)
		expect(t, w, "connected or asleep while drained", false, func(w *world) bool { return w.connected || w.listening || asleep(w) })
		wait(15 * time.Second)
		expect(t, w, "connected after the drain", true, func(w *world) bool { return w.connected })
	})
}

func TestLoop_closesSessionsOfARestartingOrStoppingServer(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.inUse = true })
		loop.Deliver(healthy())
		wait(5 * time.Second)
		restarting := healthy()
		restarting.Healthy, restarting.Restarting = false, true
		loop.Deliver(restarting)
		wait(0)
		expect(t, w, "connected during a restart", false, func(w *world) bool { return w.connected || w.listening })
		loop.Deliver(healthy())
		wait(5 * time.Second)
		expect(t, w, "connected again", true, func(w *world) bool { return w.connected })
		w.with(func(w *world) { w.shuttingDown = true })
		wait(2 * time.Second)
		expect(t, w, "connected during a shutdown", false, func(w *world) bool { return w.connected || w.listening })
	})
}

func TestLoop_keepsNoSessionAfterAChangeOfTheSpecification(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		w.with(func(w *world) { w.inUse = true })
		loop.Deliver(healthy())
		wait(5 * time.Second)
		changed := healthy()
		changed.Generation = 2
		loop.Deliver(changed)
		wait(0)
		expect(t, w, "connected right after the change", false, func(w *world) bool { return w.connected || w.listening })
		expect(t, w, "sampled once more", 2, func(w *world) int { return w.opened })
		wait(5 * time.Second)
		expect(t, w, "connected five seconds later", false, func(w *world) bool { return w.connected || w.listening })
		wait(10 * time.Second)
		expect(t, w, "connected afterwards", true, func(w *world) bool { return w.connected && w.listening })
	})
}

func TestLoop_publishesAtOnceWhetherItListens(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		synctest.Wait()
		w.notification()(postgres.Notification{Kind: postgres.KindBacklog, At: time.Now()})
		synctest.Wait()
		expect(t, w, "published", true, func(w *world) bool { return w.status.ListenerConnected })
		var failed func(error)
		w.with(func(w *world) { w.listening, failed = false, w.failed })
		failed(errAway)
		synctest.Wait()
		expect(t, w, "published after the connection was lost", false, func(w *world) bool { return w.status.ListenerConnected })
	})
}

func TestLoop_aNotificationPutsSleepOff(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		wait(20 * time.Second)
		w.notification()(postgres.Notification{Kind: postgres.KindActivity, At: time.Now()})
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		w.notification()(postgres.Notification{Kind: postgres.KindMalformed, Err: errAway})
		wait(10 * time.Second)
		expect(t, w, "asleep", true, asleep)
	})
}

func TestLoop_resumesSchedulesOnceAfterAWake(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		hibernating := healthy()
		hibernating.Hibernating = true
		w.with(func(w *world) { w.view, w.suspended, w.inUse = hibernating, 1, true })
		loop.Deliver(hibernating)
		wait(10 * time.Second)
		expect(t, w, "resumed while asleep", 0, func(w *world) int { return w.resumed })
		loop.Deliver(healthy())
		wait(time.Minute)
		expect(t, w, "resumed", 1, func(w *world) int { return w.resumed })
		expect(t, w, "an Event is written", true, func(w *world) bool { return slices.Contains(w.events, "Resumed") })
	})
}

func TestLoop_resumesSchedulesWithoutTheStandbys(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		change  func(*kubernetes.View)
		resumed int
	}{
		{"once the primary is ready", func(*kubernetes.View) {}, 1},
		{"not before that", func(v *kubernetes.View) { v.Ready = nil }, 0},
		{"not for what was ready before the sleep", func(v *kubernetes.View) { v.Hibernation = "Hibernated" }, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				woken := healthy()
				woken.Healthy, woken.Instances = false, []string{"c-1", "c-2"} // the other finds no node
				row.change(&woken)
				w.with(func(w *world) { w.view, w.suspended = woken, 1 })
				loop.Deliver(woken)
				wait(time.Minute)
				expect(t, w, "resumed", row.resumed, func(w *world) int { return w.resumed })
			})
		})
	}
}

func TestLoop_saysWhichSchedulesStaySuspended(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.left = []string{"nightly"} }, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(time.Second)
		expect(t, w, "an Event tells", true, func(w *world) bool { return slices.Contains(w.events, "ScheduleLeftSuspended") })
		expect(t, w, "resumed", false, func(w *world) bool { return slices.Contains(w.events, "Resumed") })
	})
}

// Two Events of the same moment have names of their own, and the second is written although the first one waits to be repeated.

// The client implements the loop's interface.
var _ Kubernetes = (*kubernetes.Client)(nil)
