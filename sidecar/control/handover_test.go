package control

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

func TestHandover_endsInSleepOrUndoesEverything(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		make   func(*world)
		asleep bool
		reason idle.Reason
	}{
		{"the gateway acknowledges: asleep", func(w *world) { w.gatewayTakes = 3 * time.Second }, true, ""},
		{"no gateway: awake, and nothing is suspended", func(w *world) { w.gatewayAway = true }, false, idle.ReasonGatewayUnavailable},
		{"one that takes too long is none", func(w *world) { w.gatewayTakes = 25 * time.Second }, false, idle.ReasonGatewayUnavailable},
		{"an acknowledgement of something else is none", func(w *world) {
			w.gatewayAway = true
			w.view.Annotations[contract.AnnotationGatewayReady] = "another-pod 2026-01-01T00:00:00Z"
		}, false, idle.ReasonGatewayUnavailable},
		{"wake=manual needs none", func(w *world) {
			w.gatewayAway = true
			w.view.Annotations[contract.AnnotationWake] = "manual"
		}, true, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, row.make, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(52 * time.Second)
				expect(t, w, "asleep", row.asleep, asleep)
				if row.asleep {
					return
				}
				expect(t, w, "reason", row.reason, func(w *world) idle.Reason { return w.status.Decision.Reason })
				expect(t, w, "suspended", 0, func(w *world) int { return w.suspended })
				expect(t, w, "announced", "", func(w *world) string { return w.view.Annotations[contract.AnnotationAnnounced] })
				wait(10 * time.Minute)
				expect(t, w, "asleep later", false, asleep)
				w.with(func(w *world) { w.gatewayAway, w.gatewayTakes = false, time.Second })
				wait(6 * time.Minute)
				expect(t, w, "asleep once there is a gateway", true, asleep)
			})
		})
	}
}

func TestHandover_whileTheGatewayIsAwaited(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		then func(*world, *Loop)
		want func(*world) bool
	}{
		{"a use ends the attempt at once", func(w *world, _ *Loop) {
			w.report(activity.Ended{Peer: netip.MustParseAddrPort("10.0.0.3:1"), Received: 700, At: time.Now()})
		}, func(w *world) bool {
			return !asleep(w) && w.view.Annotations[contract.AnnotationAnnounced] == "" && w.suspended == 0
		}},
		{"a shutdown is noticed within two seconds", func(w *world, _ *Loop) {
			w.with(func(w *world) { w.shuttingDown = true })
		}, func(w *world) bool { return !asleep(w) && !w.connected }},
		{"an unhealthy cluster ends the attempt, and is listened to", func(w *world, loop *Loop) {
			w.with(func(w *world) { w.view.Healthy = false })
			loop.Deliver(w.seen())
		}, func(w *world) bool { return !asleep(w) && w.listening && w.suspended == 0 }},
		{"wake=manual ends the wait", func(w *world, loop *Loop) {
			w.with(func(w *world) { w.view.Annotations[contract.AnnotationWake] = "manual" })
			loop.Deliver(w.seen())
		}, asleep},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { w.gatewayAway = true }, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(35 * time.Second)
				expect(t, w, "announced", true, func(w *world) bool { return w.view.Annotations[contract.AnnotationAnnounced] != "" })
				row.then(w, loop)
				wait(2 * time.Second)
				expect(t, w, "as it should be", true, row.want)
			})
		})
	}
}

func TestHandover_aBackupThatBeginsMeanwhileEndsTheAttempt(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.gatewayTakes = 3 * time.Second }, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(31 * time.Second)
		expect(t, w, "announced", true, func(w *world) bool { return w.view.Annotations[contract.AnnotationAnnounced] != "" })
		w.with(func(w *world) { w.backups = []string{"by-hand"} })
		wait(10 * time.Second)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "reason", idle.ReasonBackupRunning, func(w *world) idle.Reason { return w.status.Decision.Reason })
		w.with(func(w *world) { w.backups = nil })
		wait(time.Minute)
		expect(t, w, "asleep once it has ended", true, asleep)
	})
}

func TestHandover_aLostAnswerToTheSwitchUndoesNothing(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.lost = sleep.Hibernate }, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(20 * time.Second)
		before := 0
		w.with(func(w *world) { before = w.resumed })
		wait(15 * time.Second)
		expect(t, w, "asleep", true, asleep)
		expect(t, w, "resumed while it falls asleep", before, func(w *world) int { return w.resumed })
		expect(t, w, "a marker is left", true, func(w *world) bool { return w.marker.left.Load() })
		expect(t, w, "results", true, func(w *world) bool { return slices.Equal(w.results, []sleep.Result{sleep.ResultSuccess}) })
	})
}

func TestHandover_aSessionOnASiblingWithdrawsTheSwitch(t *testing.T) {
	t.Parallel()
	var inUse atomic.Bool
	prepare := func(w *world) {
		w.view.Instances = []string{"c-1", "c-2"}
		w.view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2")}
		w.answers = func(bool) []siblingAnswer {
			answer := reportOf("c-2", time.Hour, inUse.Load())
			if w.view.Hibernating { // nobody counts for how long it is idle any more
				answer.Report.IdleForSeconds = nil
			}
			return []siblingAnswer{answer}
		}
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(32 * time.Second)
		expect(t, w, "asleep", true, asleep)
		wait(5 * time.Second)
		expect(t, w, "withdrawn although it is in no use", 0, func(w *world) int { return w.withdrawn })
		inUse.Store(true)
		wait(2 * time.Second)
		expect(t, w, "withdrawn", 1, func(w *world) int { return w.withdrawn })
	})
}

// A session through the gateway is judged by its own client.
func TestLoop_judgesASessionOfTheGatewaysByItsClient(t *testing.T) {
	t.Parallel()
	gateway, client := netip.MustParseAddrPort("10.0.0.66:40000"), netip.MustParseAddrPort("10.9.0.1:5000")
	for _, row := range []struct {
		rule      string
		announced bool
		used      bool
	}{
		{"one whose client the gateway named is ignored as its client is", true, false},
		{"one that was not is the gateway's, and counts", false, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			addrs := monitor.NewClientAddrs()
			if row.announced {
				addrs.Add(gateway.Addr(), contract.ClientAddress{Port: gateway.Port(), Peer: client})
			}
			prepare := func(w *world) {
				w.view.Annotations[contract.AnnotationIgnore] = "client=10.9.0.0/16"
				w.clientAddrs = addrs
			}
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(20 * time.Second)
				w.report(activity.Ended{Peer: gateway, Received: 700, At: time.Now()})
				wait(11 * time.Second)
				expect(t, w, "asleep", !row.used, asleep)
			})
		})
	}
}

func TestEndSessions_aStandbyEndsWhatItsNewestSampleJudged(t *testing.T) {
	t.Parallel()
	prepare := func(w *world) {
		w.view.Annotations[contract.AnnotationActivity] = "queries"
		w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2"
		w.view.Instances = []string{"c-1", "c-2"}
		w.view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2")}
		w.inUse, w.stateChanged = true, time.Now()
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		if !loop.SampleFor(t.Context(), netip.MustParseAddr("10.0.0.2")) {
			t.Fatal("it was not sampled")
		}
		expect(t, w, "ended before the hibernation patch", 0, func(w *world) int { return len(w.terminated) })
		w.with(func(w *world) { w.view.Hibernating, w.view.Ours = true, true })
		loop.Deliver(w.seen())
		wait(0)
		expect(t, w, "ended", 1, func(w *world) int { return len(w.terminated) })
		w.with(func(w *world) { w.terminated = nil })
		wait(time.Minute)
		expect(t, w, "ended later", 0, func(w *world) int { return len(w.terminated) })
		expect(t, w, "a session is kept", false, func(w *world) bool { return w.connected })
	})
}

// PostgreSQL may end the sessions although its answer comes too late, and the kernel reports their ends.
func TestEndSessions_aLostAnswerWithdrawsNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		takes time.Duration // until the hibernation patch is answered
	}{
		{"after the answer to the hibernation patch", 0},
		{"before the answer to the hibernation patch, which the watch overtakes", 2 * time.Second},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			prepare := func(w *world) {
				resting(w)
				w.terminateLost, w.hibernateTakes = true, row.takes
			}
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(31 * time.Second)
				expect(t, w, "asleep", true, asleep)
				w.with(func(w *world) { w.inUse = false })
				w.report(activity.Ended{Peer: peer, Received: 700, At: time.Now()})
				wait(5 * time.Second)
				expect(t, w, "withdrawn", 0, func(w *world) int { return w.withdrawn })
				expect(t, w, "told", true, func(w *world) bool {
					return slices.ContainsFunc(w.messages, func(m string) bool {
						return strings.HasSuffix(m, "ended sessions that do not count: at most 1") && !strings.Contains(m, "0001-01-01")
					})
				})
			})
		})
	}
}

func TestHandover_useOfASiblingLeavesNoWaitBehind(t *testing.T) {
	t.Parallel()
	var inUse atomic.Bool
	var since atomic.Int64
	prepare := func(w *world) {
		w.view.Instances = []string{"c-1", "c-2"}
		w.view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2")}
		w.gatewayTakes = 3 * time.Second
		w.answers = func(bool) []siblingAnswer {
			return []siblingAnswer{reportOf("c-2", time.Since(time.UnixMilli(since.Load())), inUse.Load())}
		}
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		announced := func(w *world) bool { return w.view.Annotations[contract.AnnotationAnnounced] != "" }
		loop.Deliver(w.seen())
		for range 8 { // a session on the standby begins in each handover
			ok := false
			for range 60 {
				wait(time.Second)
				if w.with(func(w *world) { ok = announced(w) }); ok {
					break
				}
			}
			if !ok {
				t.Error("a minute after the last use the cluster is not about to sleep")
			}
			inUse.Store(true)
			wait(12 * time.Second)
			inUse.Store(false)
			since.Store(time.Now().UnixMilli())
		}
		expect(t, w, "asleep", false, asleep)
		for ok, waited := false, 0; !ok && waited < 60; waited++ {
			wait(time.Second)
			w.with(func(w *world) { ok = asleep(w) })
		}
		expect(t, w, "asleep once nobody comes any more", true, asleep)
	})
}

// The plugin compares the deadline, and since when the cluster sleeps, with its own clock, which is that of the API server.
func TestLoop_announcesByTheClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		ahead time.Duration
		tries int
	}{
		{"the clocks agree", 0, 1},
		{"they differ by what a deadline may be off", time.Second, 1},
		{"that of the node is behind", 40 * time.Second, 2},
		{"so little that the gateway would leave before the switch", 25 * time.Second, 2},
		{"that of the node is ahead", -time.Hour, 2},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { w.serverAhead = row.ahead }, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(43 * time.Second) // the second try is at 40 s; no operator begins before 45 s
				expect(t, w, "asleep", true, asleep)
				expect(t, w, "announcements", row.tries, func(w *world) int { return len(w.announcements) })
				w.with(func(w *world) {
					announced, err := contract.ParseAnnouncement(w.announcements[len(w.announcements)-1])
					if err != nil {
						t.Fatal(err)
					}
					left := announced.Deadline.Sub(w.hibernated)
					if left < contract.AnnouncementLifetime-10*time.Second || left > contract.AnnouncementLifetime+clockTolerance {
						t.Errorf("the deadline is %s after the switch", left)
					}
				})
			})
		})
	}
}
