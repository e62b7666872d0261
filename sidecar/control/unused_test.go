package control

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
)

// TestLoop_sleepsSoonAfterAWakeThatNobodyUsed lets a connection wake a cluster whose threshold is half an hour.
func TestLoop_sleepsSoonAfterAWakeThatNobodyUsed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		prepare func(*world)
		asleep  bool
	}{
		{"a minute later if nothing happens", func(*world) {}, true},
		{"not if a person woke it, who leaves the time of the last sleep", func(w *world) {
			w.view.Annotations[contract.AnnotationAsleepSince] = "2000-01-01T00:00:00Z"
		}, false},
		{"nor if it is not known who woke it", func(w *world) { delete(w.view.Annotations, contract.AnnotationLastWake) }, false},
		{"nor if a request woke it", func(w *world) {
			wake := contract.LastWake{At: time.Now(), Cause: contract.CauseRequest, By: "request of 2000-01-01T00:00:00Z"}
			w.view.Annotations[contract.AnnotationLastWake], _ = wake.Encode()
		}, false},
		{"but if objects woke it, which no session shows", func(w *world) {
			wake := contract.LastWake{At: time.Now(), Cause: contract.CauseObject, By: "Database shop-db"}
			w.view.Annotations[contract.AnnotationLastWake], _ = wake.Encode()
		}, true},
		{"nor if it was woken a while ago", func(w *world) { lastWake(w, time.Now().Add(-10*time.Minute)) }, false},
		{"nor if PostgreSQL has served for a while before the first sample", func(w *world) { w.started = time.Now().Add(-2 * time.Minute).UnixMicro() }, false},
		{"nor if PostgreSQL has stopped since, as in a pod that was deleted", func(w *world) { w.checkpointed = time.Now().UnixMicro() }, false},
		{"nor if this instance became the primary since", func(w *world) { w.view.PrimarySince = time.Now().Add(time.Second) }, false},
		{"but if it became the primary before the wake", func(w *world) { w.view.PrimarySince = time.Now().Add(-time.Hour) }, true},
		{"nor if a session is open", func(w *world) { w.inUse = true }, false},
		{"nor if the gateway has passed a session on", func(w *world) {
			w.clientAddrs.Add(netip.MustParseAddr("10.0.0.9"), contract.ClientAddress{Port: 40000, Peer: netip.MustParseAddrPort("10.1.2.3:5000")})
		}, false},
		{"but if the gateway has only probed", func(w *world) {
			w.clientAddrs.Add(netip.MustParseAddr("10.0.0.9"), contract.ClientAddress{Port: 40000, Peer: netip.MustParseAddrPort("10.0.0.9:40000"), Probe: true})
		}, true},
		{"nor if an earlier process of the sidecar has run", func(w *world) { w.kept = &monitor.Checkpoint{} }, false},
		{"nor while a Backup runs", func(w *world) { w.backups = []string{"b"} }, false},
		{"nor if another instance was used, or has missed something", func(w *world) { besides(w, func(r *contract.Report) { r.Unused = false }) }, false},
		{"but beside another instance that was not used", func(w *world) { besides(w, func(*contract.Report) {}) }, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				w.view.Annotations[contract.AnnotationInactivityMinutes] = "30"
				lastWake(w, time.Now())
				row.prepare(w)
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(55 * time.Second)
				expect(t, w, "asleep before the minute has passed", false, asleep)
				wait(20 * time.Second)
				expect(t, w, "asleep", row.asleep, asleep)
			})
		})
	}
}

// Monitoring that stays connected comes back when its session is ended for the sleep, and wakes the cluster. Its session does not count,
// so the wake is unused, and an Event says how to keep it from waking the cluster.
func TestLoop_takesAWakeByAnIgnoredSessionForUnused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, ignore, by string
		asleep, named    bool
	}{
		{"the session of who woke it is ignored", "user=app", "10.1.2.3", true, true},
		{"it is another's", "user=app", "10.1.2.4", true, false},
		{"it is not ignored", "user=mon", "10.1.2.3", false, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				w.view.Annotations[contract.AnnotationInactivityMinutes], w.view.Annotations[contract.AnnotationIgnore] = "30", row.ignore
				lastWake(w, time.Now())
				w.view.Annotations[contract.AnnotationLastWake] = strings.Replace(w.view.Annotations[contract.AnnotationLastWake], "10.1.2.3", row.by, 1)
				w.inUse = true
				w.clientAddrs.Add(peer.Addr(), contract.ClientAddress{Port: peer.Port(), Peer: netip.MustParseAddrPort("10.1.2.3:5000")})
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(75 * time.Second)
				expect(t, w, "asleep", row.asleep, asleep)
				expect(t, w, "an Event names the item", row.named, func(w *world) bool {
					at := slices.Index(w.events, "WokenByIgnored")
					return at >= 0 && strings.Contains(w.messages[at], `user "app"`) && strings.Contains(w.messages[at], "client=10.1.2.3,")
				})
			})
		})
	}
}

// lastWake sets when a connection woke the cluster, and starts the server now.
func lastWake(w *world, at time.Time) {
	value, err := contract.LastWake{At: at, By: "10.1.2.3", Service: "c-rw"}.Encode()
	if err != nil {
		panic(err)
	}
	w.view.Annotations[contract.AnnotationLastWake], w.started = value, time.Now().UnixMicro()
}

// besides adds an instance that reports to have been idle for an hour and unused since the wake, with further changes to its
// report.
func besides(w *world, say func(*contract.Report)) {
	w.view.Instances = []string{"c-1", "c-2"}
	w.view.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.2")}
	w.answers = func(bool) []siblingAnswer {
		answer := reportOf("c-2", time.Hour, false)
		answer.Report.Unused = true
		say(&answer.Report)
		return []siblingAnswer{answer}
	}
}

// Only the pod of a standby that was replaced knew who had used it; the new one has seen nobody.
func TestLoop_doesNotTakeAWakeForUnusedOnceAnInstanceWasReplaced(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*kubernetes.View)
		asleep bool
	}{
		{"the same instances are a proof", func(*kubernetes.View) {}, true},
		{"a pod at another address is another pod", func(v *kubernetes.View) {
			v.Addresses = map[string]netip.Addr{"c-2": netip.MustParseAddr("10.0.0.3")}
		}, false},
		{"a pod that was removed says nothing any more", func(v *kubernetes.View) { v.Instances, v.Addresses = []string{"c-1"}, nil }, false},
		{"its own new address is no other pod's", func(v *kubernetes.View) {
			v.Addresses = map[string]netip.Addr{"c-1": netip.MustParseAddr("10.0.0.9"), "c-2": netip.MustParseAddr("10.0.0.2")}
		}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				w.view.Annotations[contract.AnnotationInactivityMinutes] = "30"
				lastWake(w, time.Now())
				besides(w, func(*contract.Report) {})
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(10 * time.Second)
				w.with(func(w *world) { row.change(&w.view) })
				loop.Deliver(w.seen())
				wait(65 * time.Second)
				expect(t, w, "asleep", row.asleep, asleep)
			})
		})
	}
}

// A standby reports that it was not used, until one of its samples has failed.
func TestLoop_onAStandbyKnowsThatNobodyUsedIt(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2"
		lastWake(w, time.Now())
	}, func(t *testing.T, w *world, loop *Loop) {
		unused := func(w *world) bool { return !w.status.State.Unused.IsZero() }
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		expect(t, w, "unused", true, unused)
		w.with(func(w *world) { w.broken = true })
		wait(2 * time.Minute)
		w.with(func(w *world) { w.broken = false })
		wait(10 * time.Second)
		expect(t, w, "unused after a sample that failed", false, unused)
	})
}

// An ended session is reported to the other instances even before the next sample, which does not show it.
func TestLoop_isUsedAsSoonAsASessionHasEnded(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		w.view.Annotations[contract.AnnotationInactivityMinutes] = "30"
		lastWake(w, time.Now())
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		unused := func(w *world) bool { return !w.status.State.Unused.IsZero() }
		expect(t, w, "unused before", true, unused)
		after := true
		w.with(func(w *world) { w.inSample = func(w *world) { after = unused(w) } })
		w.report(activity.Ended{Peer: peer, Received: 700, At: time.Now()})
		wait(time.Second)
		if after {
			t.Error("it is unused after the use")
		}
	})
}

func TestAsleepReason_saysThatNobodyUsedIt(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if got := asleepReason(kubernetes.View{}, attempt{judged: idle.State{IdleSince: at}}); got != "idle since 2026-03-01T12:00:00Z" {
		t.Error(got)
	}
	if got := asleepReason(kubernetes.View{}, attempt{judged: idle.State{IdleSince: at, Unused: at}}); !strings.HasPrefix(got, contract.AsleepReasonUnusedPrefix) || !strings.HasSuffix(got, "2026-03-01T12:00:00Z") {
		t.Error(got)
	}
	ignored := attempt{judged: idle.State{IdleSince: at, Unused: at}, ignored: activity.Terminable{PID: 7}}
	if got := asleepReason(kubernetes.View{}, ignored); !strings.HasPrefix(got, contract.AsleepReasonUnusedPrefix) || !strings.HasSuffix(got, contract.AsleepReasonIgnoredSuffix) {
		t.Error(got)
	}
}

func TestPutToSleep_saysWhatForUnlessNobodyUsedIt(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	done := attempt{judged: idle.State{IdleSince: at}, cause: ", on request", suspended: 1, ended: 2}
	const counts = "; suspended ScheduledBackups: 1; ended sessions that do not count: 2"
	if got := putToSleep(kubernetes.View{}, done); got != "Put to sleep: idle since 2026-03-01T12:00:00Z, on request"+counts {
		t.Error(got)
	}
	done.judged.Unused = at
	if got := putToSleep(kubernetes.View{}, done); got != "Put to sleep: unused since it was woken at 2026-03-01T12:00:00Z"+counts {
		t.Error(got)
	}
}

func TestDozed_saysWhatForUnlessNobodyUsedIt(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := &Status{View: kubernetes.View{DozingSince: at}, Policy: idle.Policy{Threshold: time.Hour, Doze: 10 * time.Minute}}
	const hibernates = "; hibernates at 2026-03-01T12:50:00Z"
	if got := dozed(s, attempt{judged: idle.State{IdleSince: at}}); got != "Dozing: idle since 2026-03-01T12:00:00Z, for the 10m0s of doze-minutes"+hibernates {
		t.Error(got)
	}
	if got := dozed(s, attempt{judged: idle.State{IdleSince: at, Unused: at}}); got != "Dozing: unused since it was woken at 2026-03-01T12:00:00Z"+hibernates {
		t.Error(got)
	}
}

func TestPutToSleep_saysHowManySessionsMayHaveBeenEnded(t *testing.T) {
	t.Parallel()
	if got := putToSleep(kubernetes.View{}, attempt{unconfirmed: 50}); !strings.HasSuffix(got, "ended sessions that do not count: at most 50") {
		t.Error(got)
	}
}

func TestLoop_cause(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	dozing := kubernetes.View{Dozing: true, DozingSince: at, Generation: 1, Operator: "1.30"}
	changed, upgraded := dozing, dozing
	changed.Generation, upgraded.Operator = 2, "1.31"
	requested := func(at time.Time) Status {
		view := dozing
		view.Annotations = map[string]string{contract.AnnotationSleepRequested: at.Format(time.RFC3339)}
		return Status{View: view, Policy: idle.Policy{SleepRequested: at}}
	}
	for _, row := range []struct {
		rule   string
		status Status
		want   string
	}{
		{"the threshold has passed", Status{Decision: idle.Decision{ThresholdPassed: true}}, ", for the threshold of 1h0m0s"},
		{"it has not, so that there was a request", Status{}, ", on request"},
		{
			"where it would doze again, but lacks its requests",
			Status{Decision: idle.Decision{ThresholdPassed: true, DozeBlockers: []idle.Reason{idle.ReasonGrowthPending}}},
			", because its pod still has the small requests of its last doze",
		},
		{"it has dozed for the threshold", Status{View: dozing}, ", for the threshold of 1h0m0s"},
		{"a request during the doze", requested(at), ", on request"},
		{"a request before it", requested(at.Add(-time.Second)), ", for the threshold of 1h0m0s"},
		{"a change of the specification", Status{View: changed}, ", because its pod, its specification, its image, the operator or a plugin has changed, or a restart was requested"},
		{"another operator", Status{View: upgraded}, ", because its pod, its specification, its image, the operator or a plugin has changed, or a restart was requested"},
	} {
		loop := &Loop{status: row.status, doze: dozeState{specification: "1 1.30"}}
		if loop.status.Policy.Threshold = time.Hour; loop.status.cause(loop.doze.specification) != row.want {
			t.Errorf("%s: %q", row.rule, loop.status.cause(loop.doze.specification))
		}
	}
}
