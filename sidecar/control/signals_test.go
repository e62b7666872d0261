package control

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

func TestLoop_aSessionThatNobodySawIsActivity(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		for range 10 { // a threshold of 30 seconds, and a session of no length every 25
			wait(25 * time.Second)
			ended := time.Now()
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Received: 700, At: ended})
			wait(2 * time.Second)
			expect(t, w, "last activity is not earlier than its end", false, func(w *world) bool {
				return w.status.State.LastActivity.Before(ended)
			})
		}
		expect(t, w, "asleep", false, asleep)
		wait(30 * time.Second)
		expect(t, w, "asleep afterwards", true, asleep)
	})
}

func TestEvents_whatIsNoClientIsNoActivity(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.view.Annotations[contract.AnnotationIgnore] = "client=10.9.0.0/16" }, func(t *testing.T, w *world, loop *Loop) {
		view := w.seen()
		view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2")}
		loop.Deliver(view)
		wait(0)
		probe := netip.MustParseAddrPort("127.0.0.1:4")
		for range 16 {
			w.clientAddrs.AddProbe(probe)
			w.report(
				activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Received: 9, At: time.Now()},
				activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.2:2"), Received: 3258, At: time.Now()},
				activity.Ended{Peer: netip.MustParseAddrPort("10.9.0.3:3"), Received: 700, At: time.Now()},
				activity.Ended{Peer: probe, Received: 700, At: time.Now()})
			wait(2 * time.Second)
		}
		expect(t, w, "asleep", true, asleep)
	})
}

func TestEvents_whoeverWouldWakeTheClusterIsActivity(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, peer string
		received   uint64
	}{
		{"a client that asks whether the server is ready", "10.0.0.3:1", 62},
		{"a client with a wrong password", "10.0.0.3:1", 218},
		{"a client over TLS", "10.0.0.3:1", 1143},
		{"a client from the pod's own address", "10.0.0.1:1", 218},
		{"a client over the loopback interface", "127.0.0.1:1", 218},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				view := healthy()
				view.Addresses = map[string]netip.Addr{"c-1": netip.MustParseAddr("10.0.0.1")}
				loop.Deliver(view)
				wait(20 * time.Second)
				w.report(activity.Ended{Peer: netip.MustParseAddrPort(row.peer), Received: row.received, At: time.Now()})
				wait(25 * time.Second)
				expect(t, w, "asleep", false, asleep)
				wait(10 * time.Second)
				expect(t, w, "asleep", true, asleep)
			})
		})
	}
}

func TestLoop_lostReportsAreActivity(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		wait(20 * time.Second)
		w.with(func(w *world) { w.reports.ended <- nil })
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "counted", true, func(w *world) bool { return slices.Contains(w.verdicts, activity.VerdictLost) })
	})
}

func TestLoop_samplesEverySecondWithoutSocketEvents(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.silent = true }, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		wait(10 * time.Second)
		expect(t, w, "samples in ten seconds", true, func(w *world) bool { return w.samples >= 9 && w.samples <= 11 })
		expect(t, w, "said so", true, func(w *world) bool { return w.status.Unsupported && !w.status.Reported })
		w.with(func(w *world) { w.ledger["app"] = activity.Database{Sessions: 1} }) // a session between two samples
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		w.with(func(w *world) { w.ledger["postgres"] = activity.Database{Sessions: 17} }) // probes
		wait(10 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "tried to listen, after 0, 10 and 30 s", 3, func(w *world) int { return w.joined })
	})
}

func TestLoop_samplesAnIdleInstanceOnceAMinute(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Annotations[contract.AnnotationInactivityMinutes] = "600"
		loop.Deliver(view)
		wait(time.Minute)
		before := 0
		w.with(func(w *world) { before = w.samples })
		wait(10 * time.Minute)
		expect(t, w, "samples in ten minutes", true, func(w *world) bool { return w.samples-before <= 10 })
	})
}

// During a storm of logins the loop handles one, pauses for a second, and samples once.
func TestLoop_samplesOnceASecondUnderAStorm(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(healthy())
		wait(2 * time.Second)
		before, joined := 0, 0
		w.with(func(w *world) { before, joined = w.samples, w.joined })
		for range 1000 {
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Received: 700, At: time.Now()})
			wait(10 * time.Millisecond)
		}
		// One a second, the first at the beginning and the last at the end.
		expect(t, w, "samples in ten seconds", true, func(w *world) bool { return w.samples-before <= 11 && w.joined-joined <= 11 })
		expect(t, w, "the last activity is a second old at most", true, func(w *world) bool {
			return time.Since(w.status.State.LastActivity) <= time.Second
		})
	})
}

func TestLoop_endsARestingSessionWithQueries(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Annotations[contract.AnnotationActivity] = "queries"
		w.with(func(w *world) { w.view, w.inUse, w.stateChanged = view, true, time.Now() })
		loop.Deliver(view)
		wait(20 * time.Second)
		w.with(func(w *world) { w.stateChanged = time.Now() }) // a statement
		wait(28 * time.Second)
		expect(t, w, "asleep", false, asleep)
		wait(3 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "ended", true, func(w *world) bool {
			return len(w.terminated) == 1 && w.terminated[0].PID == 11 && w.terminated[0].Idle
		})
	})
}

func TestLoop_followsTheControlChannel(t *testing.T) {
	t.Parallel()
	send := func(w *world, n postgres.Notification) {
		n.At = time.Now()
		w.notification()(n)
		wait(0)
	}
	t.Run("keep-awake is written down, and release takes it away", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			loop.Deliver(healthy())
			wait(5 * time.Second)
			until := time.Now().Add(2 * time.Minute).UTC().Format(time.RFC3339)
			send(w, postgres.Notification{Kind: postgres.KindKeepAwake, For: 2 * time.Minute})
			expect(t, w, "annotation", until, func(w *world) string { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] })
			loop.Deliver(w.seen())
			wait(time.Minute)
			expect(t, w, "reason", idle.ReasonKeepAwakeUntil, func(w *world) idle.Reason { return w.status.Decision.Reason })
			send(w, postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Second}) // requests less
			expect(t, w, "annotation", until, func(w *world) string { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] })
			send(w, postgres.Notification{Kind: postgres.KindRelease})
			wait(6 * time.Second)
			expect(t, w, "annotation", "", func(w *world) string { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] })
			loop.Deliver(w.seen())
			wait(35 * time.Second)
			expect(t, w, "asleep", true, asleep)
		})
	})
	t.Run("keep-awake holds while the API server is away", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			loop.Deliver(healthy())
			wait(5 * time.Second)
			w.with(func(w *world) { w.away = true })
			send(w, postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour})
			wait(time.Minute)
			expect(t, w, "reason", idle.ReasonKeepAwakeUntil, func(w *world) idle.Reason { return w.status.Decision.Reason })
			w.with(func(w *world) { w.away = false })
			wait(2 * time.Minute)
			expect(t, w, "written", true, func(w *world) bool { return w.view.Annotations[contract.AnnotationKeepAwakeUntil] != "" })
		})
	})
	t.Run("hibernate does not wait for the threshold", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			view := healthy()
			view.Annotations[contract.AnnotationInactivityMinutes] = "60"
			w.with(func(w *world) { w.view = view })
			loop.Deliver(view)
			wait(6 * time.Minute)
			send(w, postgres.Notification{Kind: postgres.KindHibernate})
			wait(2 * time.Second)
			expect(t, w, "asleep", true, asleep)
			expect(t, w, "the Event says so", true, func(w *world) bool {
				return slices.ContainsFunc(w.messages, func(text string) bool { return strings.Contains(text, ", on request;") })
			})
		})
	})
	t.Run("hibernate waits for a blocker", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			w.with(func(w *world) { w.standing = []idle.Reason{idle.ReasonPreparedTransaction} })
			loop.Deliver(healthy())
			wait(6 * time.Minute)
			send(w, postgres.Notification{Kind: postgres.KindHibernate})
			wait(2 * time.Second)
			expect(t, w, "asleep", false, asleep)
			expect(t, w, "reason", idle.ReasonPreparedTransaction, func(w *world) idle.Reason { return w.status.Decision.Reason })
		})
	})
}

func TestLoop_followsTheAnnotationThatAsksForSleep(t *testing.T) {
	t.Parallel()
	// ask sets it with a clock that is off by the given time.
	ask := func(w *world, loop *Loop, off time.Duration) {
		w.with(func(w *world) {
			w.view.Annotations[contract.AnnotationSleepRequested] = time.Now().Add(off).UTC().Format(time.RFC3339)
		})
		loop.Deliver(w.seen())
	}
	hour := func(w *world) { w.view.Annotations[contract.AnnotationInactivityMinutes] = "60" }
	for _, row := range []struct {
		rule   string
		make   func(*world)
		up     time.Duration
		off    time.Duration
		after  time.Duration
		asleep bool
		reason idle.Reason
	}{
		{"it does not wait for the threshold", hour, 6 * time.Minute, 0, 2 * time.Second, true, ""},
		{"nor with a clock that is a little ahead", hour, 6 * time.Minute, 4 * time.Minute, 2 * time.Second, true, ""},
		{"nor with one that is a little slow", hour, 6 * time.Minute, -4 * time.Minute, 2 * time.Second, true, ""},
		{"one that is old asks for nothing", hour, 6 * time.Minute, -6 * time.Minute, 10 * time.Minute, false, idle.ReasonWaiting},
		{"one from the future is a mistake", hour, 6 * time.Minute, 6 * time.Minute, 2 * time.Second, false, idle.ReasonInvalidAnnotation},
		{"never before the cluster has been up for five minutes", hour, time.Minute, 0, 3 * time.Minute, false, idle.ReasonMinimumUptime},
		{"but then", hour, time.Minute, 0, 5 * time.Minute, true, ""},
		{"never over a session", func(w *world) { hour(w); w.inUse = true }, 6 * time.Minute, 0, 10 * time.Minute, false, idle.ReasonActive},
		{"never over a Backup", func(w *world) { hour(w); w.backups = []string{"b"} }, 6 * time.Minute, 0, 2 * time.Second, false, idle.ReasonBackupRunning},
		{"never over a blocker", func(w *world) { hour(w); w.standing = []idle.Reason{idle.ReasonPreparedTransaction} }, 6 * time.Minute, 0, 2 * time.Second, false, idle.ReasonPreparedTransaction},
		{"never without a wake gateway", func(w *world) { hour(w); w.gatewayAway = true }, 6 * time.Minute, 0, time.Minute, false, idle.ReasonGatewayUnavailable},
		{"only the primary follows it", func(w *world) { hour(w); w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2" }, 6 * time.Minute, 0, time.Minute, false, idle.ReasonNotPrimary},
		{"it wakes nothing up where the feature is off", func(w *world) { w.view.Annotations[contract.AnnotationEnabled] = "false" }, 6 * time.Minute, 0, time.Minute, false, idle.ReasonDisabled},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, row.make, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(row.up)
				ask(w, loop, row.off)
				wait(row.after)
				expect(t, w, "asleep", row.asleep, asleep)
				if !row.asleep {
					expect(t, w, "reason", row.reason, func(w *world) idle.Reason { return w.status.Decision.Reason })
				}
			})
		})
	}
	t.Run("it is forgotten after ten minutes", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			w.with(func(w *world) { hour(w); w.inUse = true })
			loop.Deliver(w.seen())
			wait(6 * time.Minute)
			ask(w, loop, 0)
			wait(11 * time.Minute)
			w.leave()
			wait(10 * time.Minute)
			expect(t, w, "asleep", false, asleep)
		})
	})
}

// report is another instance's report.
func reportOf(pod string, idleFor time.Duration, active bool) siblingAnswer {
	seconds := idleFor.Seconds()
	return siblingAnswer{Pod: pod, Report: contract.Report{
		Known: true, SamplesOnDemand: true, Active: active, IdleForSeconds: &seconds,
		Rules: contract.ReportedRules{Activity: contract.ActivityConnections},
	}}
}

// blockedReportOf returns the report of an instance whose server has a reason against a shutdown.
func blockedReportOf(pod, reason string) siblingAnswer {
	answer := reportOf(pod, time.Hour, false)
	answer.Report.ServerBlockers = []string{reason}
	return answer
}

func TestLoop_asksTheOtherInstances(t *testing.T) {
	t.Parallel()
	three := func() kubernetes.View {
		v := healthy()
		v.Instances = []string{"c-1", "c-2", "c-3"}
		v.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2"), "c-3": netip.MustParseAddr("10.0.0.3")}
		return v
	}
	for _, row := range []struct {
		rule    string
		answers func(sampled bool) []siblingAnswer
		asleep  bool
		reason  idle.Reason
	}{
		{"idle for longer than the threshold, and they were sampled once more", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), reportOf("c-3", time.Hour, false)}
		}, true, ""},
		{"one is in use", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), reportOf("c-3", 0, true)}
		}, false, idle.ReasonSiblingActive},
		{"one was in use a moment ago", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), reportOf("c-3", time.Second, false)}
		}, false, idle.ReasonWaiting},
		{"one does not answer", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), {Pod: "c-3", Err: errors.New("silence")}}
		}, false, idle.ReasonSiblingUnknown},
		{"one judges by rules that have changed", func(bool) []siblingAnswer {
			outdated := reportOf("c-3", time.Hour, false)
			outdated.Report.Rules.Ignore = "user=app"
			return []siblingAnswer{reportOf("c-2", time.Hour, false), outdated}
		}, false, idle.ReasonSiblingUnknown},
		{"one does not know", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), {Pod: "c-3", Report: contract.Report{SamplesOnDemand: true}}}
		}, false, idle.ReasonSiblingUnknown},
		{"the sidecar of one is too old to sample on demand", func(sampled bool) []siblingAnswer {
			if !sampled {
				return []siblingAnswer{reportOf("c-2", time.Hour, false), reportOf("c-3", time.Hour, false)}
			}
			return []siblingAnswer{reportOf("c-2", time.Hour, false), {Pod: "c-3", Err: errOutdated}}
		}, false, idle.ReasonSiblingOutdated},
		{"the server of one says something against a shutdown", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), blockedReportOf("c-3", "advisory_lock")}
		}, false, idle.ReasonAdvisoryLock},
		{"the server of one says something that a newer sidecar knows", func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), blockedReportOf("c-3", "quantum_lock")}
		}, false, idle.ReasonSiblingUnknown},
		{"one is found in use by the sample after the acknowledgement", func(sampled bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Hour, false), reportOf("c-3", time.Hour, sampled)}
		}, false, idle.ReasonSiblingActive},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				w.with(func(w *world) {
					w.view = three()
					w.answers = row.answers
				})
				loop.Deliver(three())
				wait(33 * time.Second)
				if row.asleep {
					expect(t, w, "asleep", true, asleep)
					return
				}
				wait(30 * time.Minute)
				expect(t, w, "asleep", false, asleep)
				expect(t, w, "attempts", true, func(w *world) bool { return len(w.results) < 15 })
				expect(t, w, "announced", "", func(w *world) string { return w.view.Annotations[contract.AnnotationAnnounced] })
				expect(t, w, "the reason was published", true, func(w *world) bool { return w.reasons[row.reason] })
			})
		})
	}
	t.Run("an instance is sampled for another, and for nobody else", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			replica := three()
			replica.CurrentPrimary, replica.TargetPrimary = "c-2", "c-2"
			loop.Deliver(replica)
			wait(10 * time.Second)
			before := w.sampled()
			if loop.SampleFor(t.Context(), netip.MustParseAddr("10.0.0.66")) || w.sampled() != before {
				t.Error("it was sampled for a stranger")
			}
			w.with(func(w *world) { w.inUse = true })
			if !loop.SampleFor(t.Context(), netip.MustParseAddr("10.0.0.2")) || w.sampled() != before+1 {
				t.Error("it was not sampled for another instance")
			}
			expect(t, w, "in use", true, func(w *world) bool { return w.status.Known && w.status.InUse })
			expect(t, w, "a session is kept", false, func(w *world) bool { return w.connected })
			replica.ResourceVersion, replica.Hibernating, replica.Ours = strconv.FormatInt(versions.Add(1), 10), true, true
			loop.Deliver(replica)
			wait(0)
			w.with(func(w *world) { w.inUse = false })
			if !loop.SampleFor(t.Context(), netip.MustParseAddr("10.0.0.2")) {
				t.Error("it was not sampled once hibernation is on")
			}
			expect(t, w, "in use", false, func(w *world) bool { return !w.status.Known || w.status.InUse || w.connected })
		})
	})
}

func TestLoop_withdrawsTheSwitch(t *testing.T) {
	t.Parallel()
	// asked is the Cluster after the hibernation patch, as the API server shows it.
	asked := func(w *world, condition string) kubernetes.View {
		v := w.seen()
		reason, healthyAgain := strings.CutSuffix(condition, ", and healthy")
		v.Hibernating, v.Ours, v.Hibernation = true, true, reason
		v.Healthy = healthyAgain || reason != "WaitingForHealthy"
		return v
	}
	for _, row := range []struct {
		rule, condition string
		inUse           bool
		after           time.Duration
		withdrawn       int
	}{
		{"when the operator does nothing", "", false, 17 * time.Second, 1},
		{"not at once", "", false, 10 * time.Second, 0},
		{"when the cluster became unhealthy", "WaitingForHealthy", false, 17 * time.Second, 1},
		{"not once it is healthy again, because the operator deletes the primary before it says so", "WaitingForHealthy, and healthy", true, time.Minute, 0},
		{"when somebody comes", "", true, 3 * time.Second, 1},
		{"not once the operator deletes pods", "DeletingPods", true, time.Minute, 0},
		{"not while pods are being deleted", "WaitingPodsDeletion", true, time.Minute, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(healthy())
				wait(31 * time.Second)
				expect(t, w, "asleep", true, asleep)
				w.with(func(w *world) { w.inUse = row.inUse })
				loop.Deliver(asked(w, row.condition))
				wait(row.after)
				expect(t, w, "withdrawn", row.withdrawn, func(w *world) int { return w.withdrawn })
				expect(t, w, "a marker is left", row.withdrawn == 0, func(w *world) bool { return w.marker.left.Load() })
				if row.withdrawn != 0 {
					expect(t, w, "an Event is written", true, func(w *world) bool { return slices.Contains(w.events, "SleepWithdrawn") })
					expect(t, w, "resumed", true, func(w *world) bool { return w.resumed > 0 })
				}
			})
		})
	}
	t.Run("not when a person turned it on", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			v := healthy()
			v.Hibernating = true
			loop.Deliver(v)
			wait(time.Minute)
			expect(t, w, "withdrawn", 0, func(w *world) int { return w.withdrawn })
		})
	})
}

func TestLoop_goesOnWithTheClockAfterARestart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*world)
		goesOn bool
	}{
		{"when nothing has happened", func(*world) {}, true},
		{"when only probes have logged in", func(w *world) { w.ledger["postgres"] = activity.Database{Sessions: 4} }, true},
		{"not when a session has come and gone", func(w *world) { w.ledger["app"] = activity.Database{Sessions: 4} }, false},
		{"not when the server was restarted", func(w *world) { w.kept.Started = 1 }, false},
		{"not when the kernel does not report", func(w *world) { w.silent = true }, false},
		{"not when the earlier worker did not know", func(w *world) { w.kept.State.IdleSince = time.Time{} }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var since time.Time
			prepare := func(w *world) {
				since = time.Now().Add(-20 * time.Second)
				w.kept = &monitor.Checkpoint{Started: 7, Ledger: activity.Ledger{"postgres": {}, "app": {}},
					State: idle.State{IdleSince: since, EligibleSince: since, SampledUntil: since}}
				row.change(w)
			}
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(healthy())
				wait(0)
				expect(t, w, "goes on", row.goesOn, func(w *world) bool { return w.status.State.IdleSince.Equal(since) })
				wait(12 * time.Second)
				expect(t, w, "asleep", row.goesOn, asleep)
			})
		})
	}
	t.Run("a use makes what is kept useless", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			loop.Deliver(healthy())
			wait(5 * time.Second)
			expect(t, w, "kept", false, func(w *world) bool { return w.kept.State.IdleSince.IsZero() })
			at := time.Now()
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Received: 700, At: at})
			wait(0)
			expect(t, w, "what was kept before is kept", false, func(w *world) bool { return w.kept.State.IdleSince.Before(at) })
		})
	})
}
