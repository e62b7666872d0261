package control

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/evidence"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
)

func TestASessionThatNobodySawIsActivity(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		for range 10 { // a threshold of 30 seconds, and a session of no length every 25
			wait(25 * time.Second)
			ended := time.Now()
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Sent: 700, At: ended})
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

func TestWhatIsNoLoginIsNoActivity(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2")}
		loop.See(view)
		wait(0)
		for range 16 {
			w.report(
				activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Sent: 25, At: time.Now()},
				activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.2:2"), Sent: 2478, At: time.Now()},
				activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
			wait(2 * time.Second)
		}
		expect(t, w, "asleep", true, asleep)
	})
}

// A session that is as long as a failed login over TLS is activity if the counters say that there was one.
func TestTheCountersDecideWhatIsUncertain(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		wait(20 * time.Second)
		w.with(func(w *world) { w.ledger["app"] = activity.Database{Sessions: 1} })
		w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		wait(10 * time.Second)
		expect(t, w, "asleep", true, asleep)
	})
}

// A login may come after the counters were read, and its end be reported before the look is over: it belongs to the next one.
func TestWhatEndsWhileTheCountersAreReadIsNotExplainedByThem(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		wait(20 * time.Second)
		w.with(func(w *world) {
			w.afterwards = func(w *world) {
				w.ledger["app"] = activity.Database{Sessions: 1}
				ended := activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()}
				loop.ears.heard <- batch{from: w.reports, ended: []activity.Ended{ended}}
			}
		})
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		wait(20 * time.Second)
		expect(t, w, "asleep", true, asleep)
	})
}

// Where somebody knocks just when the last look is taken, that look is repeated: the wake gateway has acknowledged already.
func TestADoubtAtTheLastLookDoesNotBeginAnew(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.gatewayTakes = 2 * time.Second }, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		wait(31 * time.Second)
		w.with(func(w *world) {
			w.afterwards = func(w *world) {
				ended := activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()}
				loop.ears.heard <- batch{from: w.reports, ended: []activity.Ended{ended}}
			}
		})
		wait(2500 * time.Millisecond)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "attempts without success", false, func(w *world) bool { return slices.Contains(w.results, ResultAborted) })
	})
}

// The exporter logs in fifteen times whenever it is scraped, while somebody tries wrong passwords over TLS. What it adds is
// found out, and a login more is told from it.
func TestTheExporterIsNotTakenForALogin(t *testing.T) {
	t.Parallel()
	knock := func(w *world) {
		w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:3"), Sent: 2014, At: time.Now()})
	}
	rise := func(w *world, by int64) {
		w.with(func(w *world) { w.ledger["app"] = activity.Database{Sessions: w.ledger["app"].Sessions + by} })
	}
	for _, row := range []struct {
		rule   string
		scrape func(*world)
		asleep bool
	}{
		{"scrapes between the knocks", func(w *world) { wait(2 * time.Second); rise(w, 15); wait(3 * time.Second); knock(w) }, true},
		{"scrapes at the moment of a knock only", func(w *world) { wait(5 * time.Second); rise(w, 15); knock(w) }, true},
		{"scrapes at the moment of another session only", func(w *world) {
			wait(5 * time.Second)
			rise(w, 15)
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.4:3"), Sent: 2014, At: time.Now()})
		}, false},
		{"a login at each scrape, which is not the same each time", func(w *world) {
			wait(5 * time.Second)
			rise(w, 15+time.Now().Unix()/15%2)
			knock(w)
		}, false},
		{"a login at each scrape", func(w *world) { wait(2 * time.Second); rise(w, 15); wait(3 * time.Second); rise(w, 1); knock(w) }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				view := healthy()
				view.Annotations[idle.KeyInactivityMinutes] = "1"
				loop.See(view)
				for range 5 { // fifteen seconds each
					row.scrape(w)
					wait(5 * time.Second)
					knock(w)
					wait(5 * time.Second)
					knock(w)
				}
				expect(t, w, "asleep", row.asleep, asleep)
			})
		})
	}
}

func TestLostReportsAreActivity(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		wait(20 * time.Second)
		w.with(func(w *world) { w.reports.ended <- nil })
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "counted", true, func(w *world) bool { return slices.Contains(w.verdicts, activity.VerdictLost) })
	})
}

func TestAKernelThatReportsNothing(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.silent = true }, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		wait(10 * time.Second)
		expect(t, w, "looks in ten seconds", true, func(w *world) bool { return w.samples >= 9 && w.samples <= 11 })
		expect(t, w, "said so", true, func(w *world) bool { return w.status.Unsupported && !w.status.Reported })
		w.with(func(w *world) { w.ledger["app"] = activity.Database{Sessions: 1} }) // a session between two looks
		wait(25 * time.Second)
		expect(t, w, "asleep", false, asleep)
		w.with(func(w *world) { // the exporter
			w.ledger["app"], w.ledger["postgres"] = activity.Database{Sessions: 16}, activity.Database{Sessions: 17}
		})
		wait(10 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "tried to listen", 1, func(w *world) int { return w.joined })
	})
}

func TestAnIdleInstanceIsLeftAlone(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Annotations[idle.KeyInactivityMinutes] = "600"
		loop.See(view)
		wait(time.Minute)
		before := 0
		w.with(func(w *world) { before = w.samples })
		wait(10 * time.Minute)
		expect(t, w, "looks in ten minutes", true, func(w *world) bool { return w.samples-before <= 10 })
	})
}

// Under a storm of logins the loop hears one, is deaf for a second, and looks once.
func TestAStormOfLogins(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		loop.See(healthy())
		wait(2 * time.Second)
		before, joined := 0, 0
		w.with(func(w *world) { before, joined = w.samples, w.joined })
		for range 1000 {
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Sent: 700, At: time.Now()})
			wait(10 * time.Millisecond)
		}
		// One a second, the first at the beginning and the last at the end.
		expect(t, w, "looks in ten seconds", true, func(w *world) bool { return w.samples-before <= 11 && w.joined-joined <= 11 })
		expect(t, w, "the last activity is a second old at most", true, func(w *world) bool {
			return time.Since(w.status.State.LastActivity) <= time.Second
		})
	})
}

func TestWithQueriesARestingSessionDoesNotCountAndIsEnded(t *testing.T) {
	t.Parallel()
	live(t, func(t *testing.T, w *world, loop *Loop) {
		view := healthy()
		view.Annotations[idle.KeyActivity] = "queries"
		w.with(func(w *world) { w.view, w.inUse, w.stateChanged = view, true, time.Now() })
		loop.See(view)
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

func TestTheControlChannel(t *testing.T) {
	t.Parallel()
	send := func(w *world, n postgres.Notification) {
		n.At = time.Now()
		w.notification()(n)
		wait(0)
	}
	t.Run("keep-awake is written down, and release takes it away", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			loop.See(healthy())
			wait(5 * time.Second)
			until := time.Now().Add(2 * time.Minute).UTC().Format(time.RFC3339)
			send(w, postgres.Notification{Kind: postgres.KindKeepAwake, For: 2 * time.Minute})
			expect(t, w, "annotation", until, func(w *world) string { return w.view.Annotations[idle.KeyKeepAwakeUntil] })
			loop.See(w.seen())
			wait(time.Minute)
			expect(t, w, "reason", idle.ReasonKeepAwakeUntil, func(w *world) idle.Reason { return w.status.Decision.Reason })
			send(w, postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Second}) // asks for less
			expect(t, w, "annotation", until, func(w *world) string { return w.view.Annotations[idle.KeyKeepAwakeUntil] })
			send(w, postgres.Notification{Kind: postgres.KindRelease})
			wait(6 * time.Second)
			expect(t, w, "annotation", "", func(w *world) string { return w.view.Annotations[idle.KeyKeepAwakeUntil] })
			loop.See(w.seen())
			wait(35 * time.Second)
			expect(t, w, "asleep", true, asleep)
		})
	})
	t.Run("keep-awake holds while the API server is away", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			loop.See(healthy())
			wait(5 * time.Second)
			w.with(func(w *world) { w.away = true })
			send(w, postgres.Notification{Kind: postgres.KindKeepAwake, For: time.Hour})
			wait(time.Minute)
			expect(t, w, "reason", idle.ReasonKeepAwakeUntil, func(w *world) idle.Reason { return w.status.Decision.Reason })
			w.with(func(w *world) { w.away = false })
			wait(2 * time.Minute)
			expect(t, w, "written", true, func(w *world) bool { return w.view.Annotations[idle.KeyKeepAwakeUntil] != "" })
		})
	})
	t.Run("hibernate does not wait for the threshold", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			view := healthy()
			view.Annotations[idle.KeyInactivityMinutes] = "60"
			w.with(func(w *world) { w.view = view })
			loop.See(view)
			wait(6 * time.Minute)
			send(w, postgres.Notification{Kind: postgres.KindHibernate})
			wait(2 * time.Second)
			expect(t, w, "asleep", true, asleep)
		})
	})
	t.Run("hibernate waits for a blocker", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			w.with(func(w *world) { w.standing = []idle.Reason{idle.ReasonPreparedTransaction} })
			loop.See(healthy())
			wait(6 * time.Minute)
			send(w, postgres.Notification{Kind: postgres.KindHibernate})
			wait(2 * time.Second)
			expect(t, w, "asleep", false, asleep)
			expect(t, w, "reason", idle.ReasonPreparedTransaction, func(w *world) idle.Reason { return w.status.Decision.Reason })
		})
	})
}

func TestTheAnnotationThatAsksForSleep(t *testing.T) {
	t.Parallel()
	// ask sets it, as somebody whose clock is off by as much.
	ask := func(w *world, loop *Loop, off time.Duration) {
		w.with(func(w *world) {
			w.view.Annotations[idle.KeySleepRequested] = time.Now().Add(off).UTC().Format(time.RFC3339)
		})
		loop.See(w.seen())
	}
	hour := func(w *world) { w.view.Annotations[idle.KeyInactivityMinutes] = "60" }
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
		{"nor with one that is a little behind", hour, 6 * time.Minute, -4 * time.Minute, 2 * time.Second, true, ""},
		{"one that is old asks for nothing", hour, 6 * time.Minute, -6 * time.Minute, 10 * time.Minute, false, idle.ReasonWaiting},
		{"one from the future is a mistake", hour, 6 * time.Minute, 6 * time.Minute, 2 * time.Second, false, idle.ReasonInvalidAnnotation},
		{"never before the cluster has been up for five minutes", hour, time.Minute, 0, 3 * time.Minute, false, idle.ReasonMinimumUptime},
		{"but then", hour, time.Minute, 0, 5 * time.Minute, true, ""},
		{"never over a session", func(w *world) { hour(w); w.inUse = true }, 6 * time.Minute, 0, 10 * time.Minute, false, idle.ReasonActive},
		{"never over a Backup", func(w *world) { hour(w); w.backups = []string{"b"} }, 6 * time.Minute, 0, 2 * time.Second, false, idle.ReasonBackupRunning},
		{"never over a blocker", func(w *world) { hour(w); w.standing = []idle.Reason{idle.ReasonPreparedTransaction} }, 6 * time.Minute, 0, 2 * time.Second, false, idle.ReasonPreparedTransaction},
		{"never without a wake gateway", func(w *world) { hour(w); w.gatewayAway = true }, 6 * time.Minute, 0, time.Minute, false, idle.ReasonGatewayUnavailable},
		{"only the primary obeys", func(w *world) { hour(w); w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2" }, 6 * time.Minute, 0, time.Minute, false, idle.ReasonNotPrimary},
		{"it wakes nothing up where the feature is off", func(w *world) { w.view.Annotations[idle.KeyEnabled] = "false" }, 6 * time.Minute, 0, time.Minute, false, idle.ReasonDisabled},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, row.make, func(t *testing.T, w *world, loop *Loop) {
				loop.See(w.seen())
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
			loop.See(w.seen())
			wait(6 * time.Minute)
			ask(w, loop, 0)
			wait(11 * time.Minute)
			w.leave()
			wait(10 * time.Minute)
			expect(t, w, "asleep", false, asleep)
		})
	})
}

// report is what another instance says.
func reportOf(pod, confirmed string, idleFor time.Duration, active bool) siblings.Answer {
	seconds := idleFor.Seconds()
	return siblings.Answer{Pod: pod, Report: activity.Report{Known: true, Active: active, IdleForSeconds: &seconds, Confirmed: confirmed}}
}

func TestTheOtherInstances(t *testing.T) {
	t.Parallel()
	three := func() kubernetes.View {
		v := healthy()
		v.Instances = []string{"c-1", "c-2", "c-3"}
		v.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2"), "c-3": netip.MustParseAddr("10.0.0.3")}
		return v
	}
	for _, row := range []struct {
		rule    string
		answers func(announced string) []siblings.Answer
		asleep  bool
		reason  idle.Reason
	}{
		{"idle for longer than the threshold, and they have looked once more", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), reportOf("c-3", a, time.Hour, false)}
		}, true, ""},
		{"one is in use", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), reportOf("c-3", a, 0, true)}
		}, false, idle.ReasonSiblingActive},
		{"one was in use a moment ago", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), reportOf("c-3", a, time.Second, false)}
		}, false, idle.ReasonWaiting},
		{"one does not answer", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), {Pod: "c-3", Err: errors.New("silence")}}
		}, false, idle.ReasonSiblingUnknown},
		{"one does not know", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), {Pod: "c-3", Report: activity.Report{}}}
		}, false, idle.ReasonSiblingUnknown},
		{"one has not looked since the announcement", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), reportOf("c-3", "older", time.Hour, false)}
		}, false, idle.ReasonSiblingUnknown},
		{"one is found in use by the look after the announcement", func(a string) []siblings.Answer {
			return []siblings.Answer{reportOf("c-2", a, time.Hour, false), reportOf("c-3", a, time.Hour, a != "")}
		}, false, idle.ReasonSiblingActive},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				w.with(func(w *world) {
					w.view = three()
					w.answers = func(w *world) []siblings.Answer { return row.answers(w.view.Annotations[idle.KeyAnnounced]) }
				})
				loop.See(three())
				wait(33 * time.Second)
				if row.asleep {
					expect(t, w, "asleep", true, asleep)
					return
				}
				wait(30 * time.Minute)
				expect(t, w, "asleep", false, asleep)
				expect(t, w, "attempts", true, func(w *world) bool { return len(w.results) < 15 })
				expect(t, w, "announced", "", func(w *world) string { return w.view.Annotations[idle.KeyAnnounced] })
				expect(t, w, "reason", row.reason, func(w *world) idle.Reason { return w.status.Decision.Reason })
			})
		})
	}
	t.Run("an instance looks once more when it sees the announcement", func(t *testing.T) {
		t.Parallel()
		live(t, func(t *testing.T, w *world, loop *Loop) {
			replica := three()
			replica.CurrentPrimary, replica.TargetPrimary = "c-2", "c-2"
			loop.See(replica)
			wait(10 * time.Second)
			before := 0
			w.with(func(w *world) { before = w.samples })
			announced := three()
			announced.CurrentPrimary, announced.TargetPrimary = "c-2", "c-2"
			announced.Annotations[idle.KeyAnnounced] = "uid later"
			loop.See(announced)
			wait(0)
			expect(t, w, "looks", before+1, func(w *world) int { return w.samples })
			expect(t, w, "confirmed", "uid later", func(w *world) string { return w.status.Confirmed })
			expect(t, w, "a session is kept", false, func(w *world) bool { return w.connected })
		})
	})
}

func TestTheSwitchIsWithdrawn(t *testing.T) {
	t.Parallel()
	// asked is the Cluster after the switch, as the API server shows it.
	asked := func(w *world, condition string) kubernetes.View {
		v := w.seen()
		v.Hibernating, v.Ours, v.Hibernation, v.AsleepSince = true, true, condition, time.Now()
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
		{"when somebody comes", "", true, 3 * time.Second, 1},
		{"not once the operator deletes pods", "DeletingPods", true, time.Minute, 0},
		{"not while pods are being deleted", "WaitingPodsDeletion", true, time.Minute, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			live(t, func(t *testing.T, w *world, loop *Loop) {
				loop.See(healthy())
				wait(31 * time.Second)
				expect(t, w, "asleep", true, asleep)
				w.with(func(w *world) { w.inUse = row.inUse })
				loop.See(asked(w, row.condition))
				wait(row.after)
				expect(t, w, "withdrawn", row.withdrawn, func(w *world) int { return w.withdrawn })
				expect(t, w, "a farewell is left", row.withdrawn == 0, func(w *world) bool { return w.note.left.Load() })
				if row.withdrawn != 0 {
					expect(t, w, "an Event tells", true, func(w *world) bool { return slices.Contains(w.events, "SleepWithdrawn") })
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
			loop.See(v)
			wait(time.Minute)
			expect(t, w, "withdrawn", 0, func(w *world) int { return w.withdrawn })
		})
	})
}

func TestTheClockSurvivesARestart(t *testing.T) {
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
				w.kept = &evidence.Evidence{Instance: "pod-uid", Started: 7, Ledger: activity.Ledger{"postgres": {}, "app": {}},
					State: idle.State{IdleSince: since, EligibleSince: since, LookedUntil: since}}
				row.change(w)
			}
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.See(healthy())
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
			loop.See(healthy())
			wait(5 * time.Second)
			expect(t, w, "kept", false, func(w *world) bool { return w.kept.State.IdleSince.IsZero() })
			at := time.Now()
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Sent: 700, At: at})
			wait(0)
			expect(t, w, "what was kept before is kept", false, func(w *world) bool { return w.kept.State.IdleSince.Before(at) })
		})
	})
}
