package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
)

// instance is the pod: PostgreSQL, its instance manager, and the readiness probe.
type instance struct {
	*world
	mayDoze    bool // the pod has the readiness probe
	ready      bool
	prepared   int
	refuses    idle.Reason   // what speaks against a doze
	late       idle.Reason   // what speaks against a hibernation
	stopTakes  time.Duration // from the fence until PostgreSQL has stopped
	ignores    bool          // the manager ignores the fence
	managed    bool          // the manager answers
	busy       bool          // PostgreSQL does not answer
	broken     bool          // PostgreSQL does not start
	unheld     bool          // the gateway does not hold the clients
	postmaster doze.Postmaster
	sizes      []string // of its requests, as wanted one after the other
	refused    chan error
	lacking    bool   // the pod lacks its requests
	withdrew   bool   // the pod was made unready
	ended      string // whose sessions were ended when PostgreSQL stopped
}

func (i *instance) Want(small bool) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.sizes = append(i.sizes, map[bool]string{true: "small", false: "large"}[small])
}

func (i *instance) Refused() <-chan error { return i.refused }

func (i *instance) GrowthPending() bool {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.lacking
}

func (i *instance) Prepare(context.Context) (idle.Reason, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	i.prepared++
	return i.refuses, nil
}

func (i *instance) Archiver(context.Context) (idle.Reason, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.late, nil
}

func (i *instance) EndAtStop(_ context.Context, rules activity.Rules) (int, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	for _, pattern := range rules.Ignore {
		i.ended += pattern.User
	}
	return 1, nil
}

func (i *instance) Read() (doze.Postmaster, error) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return i.postmaster, nil
}

func (i *instance) Accepts(context.Context) (bool, error) {
	postmaster, err := i.Read()
	if i.busy || !postmaster.Running {
		return false, errors.New("no answer")
	}
	return true, err
}

func (i *instance) AwaitStopped(ctx context.Context) error {
	return i.await(ctx, func() bool { return i.postmaster == doze.Postmaster{} })
}

func (i *instance) AwaitServing(ctx context.Context, before doze.Postmaster) error {
	return i.await(ctx, func() bool { return i.postmaster != doze.Postmaster{} && (i.postmaster != before || i.ignores) })
}

func (i *instance) AwaitStartFailed(ctx context.Context) error {
	since := time.Now()
	return i.await(ctx, func() bool {
		if i.postmaster != (doze.Postmaster{}) {
			since = time.Now()
		}
		return time.Since(since) >= doze.StartTimeout
	})
}

func (i *instance) await(ctx context.Context, is func() bool) error {
	for {
		i.mutex.Lock()
		done := is()
		i.mutex.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond): // the bubble's clock
		}
	}
}

func (i *instance) Stopping(context.Context) (stopping, known bool) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return !i.ignores, i.managed
}

func (i *instance) Withdraw(context.Context) error {
	i.with(func(w *world) { w.instance.ready, w.instance.withdrew = false, true })
	return nil
}

func (i *instance) Held() bool {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	return !i.ready
}

func (i *instance) Restore() error {
	i.with(func(w *world) { w.instance.ready = true })
	return nil
}

// hold is the gateway's second acknowledgement, once the pod is not ready.
func (w *world) hold(announcement string) {
	for meant := !w.instance.unheld; meant; {
		time.Sleep(time.Second) // the bubble's clock
		w.mutex.Lock()
		meant = w.view.Annotations[contract.AnnotationAnnounced] == announcement
		held := meant && !w.instance.ready
		if held {
			w.view.Annotations = maps.Clone(w.view.Annotations)
			w.view.Annotations[contract.AnnotationGatewayHolding] = announcement
		}
		v := w.written()
		w.mutex.Unlock()
		if held {
			w.loop.Deliver(v)
			return
		}
	}
}

func (w *world) Fence(_ context.Context, _ kubernetes.View, at time.Time) (kubernetes.View, error) {
	return w.patched(func() {
		w.view.Fenced, w.view.Dozing, w.view.DozingSince, w.view.Stopped, w.view.RestartFailed = true, true, at, "", ""
		if !w.instance.ignores {
			time.AfterFunc(w.instance.stopTakes, func() { w.with(func(w *world) { w.instance.postmaster = doze.Postmaster{} }) })
		}
	})
}

func (w *world) LiftFence(context.Context, kubernetes.View) (kubernetes.View, error) {
	return w.patched(w.unfence)
}

// unfence has PostgreSQL start again.
func (w *world) unfence() {
	w.view.Fenced, w.view.Dozing = false, false
	if !w.instance.broken && w.instance.postmaster == (doze.Postmaster{}) {
		w.started++
		w.instance.postmaster = doze.Postmaster{Running: true, PID: w.started}
	}
}

func (w *world) RemoveAnnouncement(ctx context.Context, v kubernetes.View) (kubernetes.View, error) {
	w.with(func(w *world) { w.view.DozingSince, w.view.Stopped, w.view.RestartFailed = time.Time{}, "", "" })
	return w.Annotate(ctx, v, contract.AnnotationAnnounced, nil)
}

// dozes prepares a cluster that dozes after half a minute, and hibernates after two.
func dozes(w *world) {
	w.instance.mayDoze, w.instance.refused = true, make(chan error)
	w.view.Annotations[contract.AnnotationInactivityMinutes] = "2"
	w.view.Annotations[contract.AnnotationDozeMinutes] = "0.5"
}

func dozing(w *world) bool { return w.view.Dozing && !w.view.Hibernating }

// sizes are the sizes of the pod's requests that were wanted so far.
func sizes(w *world) string { return strings.Join(w.instance.sizes, " ") }

func TestDoze_shrinksItsRequestsWhilePostgreSQLIsStopped(t *testing.T) {
	t.Parallel()
	prepare := func(w *world) { dozes(w); w.instance.stopTakes = 5 * time.Second }
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(time.Second)
		expect(t, w, "awake, what another process has shrunk grows", "large", sizes)
		for range 60 {
			wait(time.Second)
			w.with(func(w *world) {
				if small := len(w.instance.sizes) == 2; small && w.view.Stopped == "" {
					t.Error("shrunk before PostgreSQL has stopped")
				}
			})
		}
		expect(t, w, "stopped", "large small", sizes)

		w.with(func(w *world) { w.unfence(); w.instance.postmaster = doze.Postmaster{} }) // it takes its time to start
		loop.Deliver(w.seen())
		wait(time.Millisecond)
		expect(t, w, "woken, and PostgreSQL does not run yet", "large small large", sizes)
		expect(t, w, "ready", false, func(w *world) bool { return w.instance.ready })
		w.instance.refused <- errors.New("exceeded quota")
		wait(time.Second)
		expect(t, w, "told of a refusal", true, func(w *world) bool { return slices.Contains(w.events, "GrowthRefused") })

		w.with(func(w *world) { w.instance.postmaster = doze.Postmaster{Running: true, PID: 99} })
		wait(75 * time.Second)
		expect(t, w, "dozing again", "large small large small", sizes)
		wait(time.Minute)
		expect(t, w, "hibernated", true, asleep)
		expect(t, w, "small until the pod is gone", "large small large small", sizes)
	})
}

// The plugin compares since when the cluster dozes with its own clock, which is that of the API server.
func TestDoze_isTimedByTheClockOfTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		ahead   time.Duration
		request bool // that it hibernates, a minute after the doze began
	}{
		{"the clocks agree", 0, false},
		{"that of the node is behind", time.Hour, false},
		{"that of the node is ahead", -time.Hour, false},
		{"a request by the API server's clock, that of the node is behind", time.Hour, true},
		{"a request by the API server's clock, that of the node is ahead", -time.Hour, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { dozes(w); w.serverAhead = row.ahead }, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(time.Minute)
				expect(t, w, "dozing", true, dozing)
				w.with(func(w *world) {
					if since := time.Now().Add(row.ahead).Sub(w.view.DozingSince); since < 0 || since > 30*time.Second {
						t.Errorf("it dozes since %s ago", since)
					}
				})
				wait(time.Minute)
				expect(t, w, "hibernated early", false, asleep)
				if row.request {
					w.with(func(w *world) {
						w.view.Annotations = maps.Clone(w.view.Annotations)
						w.view.Annotations[contract.AnnotationSleepRequested] = time.Now().Add(row.ahead).UTC().Format(time.RFC3339)
					})
					loop.Deliver(w.seen())
					wait(5 * time.Second)
				} else {
					wait(30 * time.Second)
				}
				expect(t, w, "hibernated", true, asleep)
			})
		})
	}
}

func TestDoze_aPodThatLacksItsRequestsHibernatesInstead(t *testing.T) {
	t.Parallel()
	prepare := func(w *world) { dozes(w); w.instance.lacking = true }
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(29 * time.Second)
		expect(t, w, "hibernated early", false, asleep)
		wait(12 * time.Second)
		expect(t, w, "hibernated", true, asleep)
		expect(t, w, "dozed", false, func(w *world) bool { return slices.Contains(w.events, "Dozed") })
		expect(t, w, "told", true, func(w *world) bool { return slices.Contains(w.events, "DozeBlocked") })
	})
}

// It is told why, and hibernates at its time.
func TestDoze_isBlocked(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule    string
		prepare func(*world)
	}{
		{"without socket events a client that is logging in could not be seen", func(w *world) { w.silent = true }},
		{"a PostgreSQL that may be stopped immediately would empty its unlogged tables", func(w *world) { w.view.ShortSwitchoverDelay = true }},
		{"a fence that a person has applied would count as theirs, and no client would lift it", func(w *world) { w.view.FenceApplied = true }},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) { dozes(w); row.prepare(w) }, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(100 * time.Second)
				expect(t, w, "made unready", false, func(w *world) bool { return w.instance.withdrew })
				expect(t, w, "told", true, func(w *world) bool { return slices.Contains(w.events, "DozeBlocked") })
				wait(time.Minute)
				expect(t, w, "hibernated", true, asleep)
			})
		})
	}
}

func TestDoze_takesTheSizeOverFromAnEarlierProcess(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*world)
		want   string
	}{
		{"a cluster that dozes is small", func(w *world) {
			w.view.Fenced, w.view.Dozing, w.view.DozingSince, w.view.Stopped = true, true, time.Now(), "pod-uid"
			w.instance.postmaster = doze.Postmaster{}
		}, "small"},
		{"the requests of a pod from before are another's", func(w *world) {
			w.view.Fenced, w.view.Dozing, w.view.DozingSince, w.view.Stopped = true, true, time.Now(), "another"
		}, ""},
		{"a fence of a person is no doze", func(w *world) { w.view.Fenced = true }, "large"},
		{"a standby's requests were never changed", func(w *world) { w.view.CurrentPrimary, w.view.TargetPrimary = "c-2", "c-2" }, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			prepare := func(w *world) { dozes(w); w.instance.stopTakes = time.Hour; row.change(w) }
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(time.Second)
				expect(t, w, row.rule, row.want, sizes)
			})
		})
	}
}

func TestDoze_endsInAWakeOrHibernation(t *testing.T) {
	t.Parallel()
	liveAfter(t, dozes, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(29 * time.Second)
		expect(t, w, "dozing early", false, dozing)
		wait(12 * time.Second)
		expect(t, w, "dozing", true, dozing)
		expect(t, w, "stopped", "pod-uid", func(w *world) string { return w.view.Stopped })
		expect(t, w, "prepared", 1, func(w *world) int { return w.instance.prepared })
		expect(t, w, "ready", false, func(w *world) bool { return w.instance.ready })
		expect(t, w, "reason", idle.ReasonDozing, func(w *world) idle.Reason { return w.status.Decision.Reason })
		expect(t, w, "suspended", 1, func(w *world) int { return w.suspended })
		samples := w.sampled()
		wait(30 * time.Second)
		expect(t, w, "samples while it dozes", samples, func(w *world) int { return w.samples })

		w.with(func(w *world) { w.unfence() }) // a client wakes it
		loop.Deliver(w.seen())
		wait(time.Second)
		expect(t, w, "ready again", true, func(w *world) bool { return w.instance.ready })
		expect(t, w, "resumed", true, func(w *world) bool { return w.resumed != 0 })
		wait(28 * time.Second)
		expect(t, w, "dozing again early", false, dozing)
		wait(15 * time.Second)
		expect(t, w, "dozing again", true, dozing)
		wait(90 * time.Second)
		expect(t, w, "hibernated", true, asleep)
		expect(t, w, "events", true, func(w *world) bool {
			return slices.Contains(w.events, "Dozed") && slices.Contains(w.events, "Hibernated")
		})
	})
}

func TestDoze_servesAgainWhateverEndsIt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		make  func(*world)
		then  func(*world, *Loop) // 41 s after the start
		after time.Duration
	}{
		{"the archiver is behind: it is not announced", func(w *world) { w.instance.refuses = idle.ReasonArchiverBehind }, nil, 0},
		{"the gateway holds nobody", func(w *world) { w.instance.unheld = true }, nil, 10 * time.Second},
		{"somebody uses it while the pod leaves its Services", func(w *world) {
			time.AfterFunc(31500*time.Millisecond, func() { w.report(activity.Ended{Peer: peer, Received: 700, At: time.Now()}) })
		}, nil, 0},
		{"the instance manager ignores the fence", func(w *world) { w.instance.ignores = true }, nil, 20 * time.Second},
		{"the annotation is removed", nil, func(w *world, loop *Loop) {
			w.with(func(w *world) {
				w.view.Annotations = maps.Clone(w.view.Annotations)
				delete(w.view.Annotations, contract.AnnotationDozeMinutes)
			})
			loop.Deliver(w.seen())
		}, time.Second},
		{"a person lifts the fence", nil, func(w *world, loop *Loop) {
			w.with(func(w *world) { w.unfence() })
			loop.Deliver(w.seen())
		}, time.Second},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			prepare := func(w *world) {
				dozes(w)
				if row.make != nil {
					row.make(w)
				}
			}
			liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(41 * time.Second)
				if row.then != nil {
					expect(t, w, "dozing", true, dozing)
					row.then(w, loop)
				}
				wait(row.after)
				expect(t, w, "dozing", false, dozing)
				expect(t, w, "ready", true, func(w *world) bool { return w.instance.ready })
				expect(t, w, "announced", "", func(w *world) string { return w.view.Annotations[contract.AnnotationAnnounced] })
				expect(t, w, "marked", true, func(w *world) bool { return w.view.DozingSince.IsZero() && w.view.Stopped == "" })
			})
		})
	}
}

func TestDoze_hibernatesBeforeItsTime(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*world)
		want   bool
	}{
		{"that was requested since", func(w *world) {
			w.view.Annotations = maps.Clone(w.view.Annotations)
			since := w.view.DozingSince.UTC().Truncate(time.Second)
			w.view.DozingSince = since // as it is read from the annotation
			w.view.Annotations[contract.AnnotationSleepRequested] = since.Format(time.RFC3339)
		}, true},
		{"by a clock that is ahead of this one", func(w *world) {
			w.view.Annotations = maps.Clone(w.view.Annotations)
			w.view.Annotations[contract.AnnotationSleepRequested] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		}, true},
		{"by one that is behind, but not before the doze", func(w *world) {
			w.view.Annotations = maps.Clone(w.view.Annotations)
			w.view.DozingSince = time.Now().Add(-20 * time.Minute) // it has dozed for long
			w.view.Annotations[contract.AnnotationInactivityMinutes] = "60"
			w.view.Annotations[contract.AnnotationSleepRequested] = time.Now().Add(-10 * time.Minute).UTC().Format(time.RFC3339)
		}, true},
		{"not if that was before the doze", func(w *world) {
			w.view.Annotations = maps.Clone(w.view.Annotations)
			w.view.Annotations[contract.AnnotationSleepRequested] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		}, false},
		{"its specification has changed", func(w *world) { w.view.Generation++ }, true},
		{"its operator or a plugin has changed", func(w *world) { w.view.Operator = "another" }, true},
		{"not for anything else that the operator writes", func(w *world) { w.view.Addresses = nil }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, dozes, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(41 * time.Second)
				expect(t, w, "dozing", true, dozing)
				w.with(row.change)
				loop.Deliver(w.seen())
				wait(time.Second)
				expect(t, w, "hibernated", row.want, asleep)
			})
		})
	}
}

// The specification at the fence outlives the process that requested it.
func TestDoze_hibernatesForAChangeWhileTheSidecarWasDown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, saved string
		want        bool
	}{
		{"its specification has changed", "6 1.30", true},
		{"the operator has changed", "7 1.29", true},
		{"nothing has", "7 1.30", false},
		{"its pod has been replaced", "", true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				dozes(w)
				w.view.Fenced, w.view.Dozing, w.view.DozingSince, w.view.Stopped = true, true, time.Now(), "pod-uid"
				w.view.Generation, w.view.Operator, w.instance.postmaster = 7, "1.30", doze.Postmaster{}
				w.kept = &monitor.Checkpoint{Specification: row.saved}
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(time.Second)
				expect(t, w, "hibernated", row.want, asleep)
			})
		})
	}
}

func TestRestart_thatFailsIsRecordedOnceForEachWake(t *testing.T) {
	t.Parallel()
	failed := func(w *world) string { return w.view.RestartFailed }
	told := func(w *world) bool { return slices.Contains(w.events, "RestartFailed") }
	// wakes ends the doze as a client does, who leaves no mark, or as a person does.
	wakes := func(w *world, loop *Loop, byClient bool) {
		w.with(func(w *world) {
			if w.unfence(); byClient {
				w.view.DozingSince, w.view.Stopped = time.Time{}, ""
			}
		})
		loop.Deliver(w.seen())
	}
	for _, row := range []struct {
		rule   string
		change func(*world) // when the cluster is woken
		later  func(*world) // 30 s later
		after  time.Duration
		want   string
	}{
		{"not within a minute", nil, nil, 59 * time.Second, ""},
		{"then it is", nil, nil, 61 * time.Second, "pod-uid"},
		{"not if PostgreSQL was started late", nil, func(w *world) { w.instance.postmaster = doze.Postmaster{Running: true, PID: 9} }, 65 * time.Second, ""},
		{"nor if it is fenced again", nil, func(w *world) { w.view.Fenced = true }, 5 * time.Minute, ""},
		{"nor if nobody would make the pod anew", nil, func(w *world) { w.view.ReconciliationDisabled = true }, 5 * time.Minute, ""},
		{"nor if it hibernates", nil, func(w *world) { w.view.Hibernating = true }, 5 * time.Minute, ""},
		{"nor if another is the primary", func(w *world) { w.view.CurrentPrimary = "c-2" }, nil, 5 * time.Minute, ""},
		{"a failure of the pod that was made instead is not", func(w *world) { w.view.RestartFailed = "before" }, nil, 5 * time.Minute, "before"},
		{"after a conflict it is tried again at once, with what has changed", func(w *world) { w.conflict = true }, func(w *world) {
			time.AfterFunc(31*time.Second, func() {
				w.with(func(w *world) { w.conflict = false })
				w.loop.Deliver(w.seen())
			})
		}, 62 * time.Second, "pod-uid"},
		{"if nothing has, it is watched anew", func(w *world) { w.conflict = true }, func(w *world) {
			time.AfterFunc(45*time.Second, func() { w.with(func(w *world) { w.conflict = false }) })
		}, 122 * time.Second, "pod-uid"},
	} {
		for _, byClient := range []bool{true, false} {
			t.Run(row.rule, func(t *testing.T) {
				t.Parallel()
				liveAfter(t, dozes, func(t *testing.T, w *world, loop *Loop) {
					loop.Deliver(w.seen())
					wait(41 * time.Second)
					expect(t, w, "dozing", true, dozing)
					w.with(func(w *world) { w.instance.broken = true })
					if row.change != nil {
						w.with(row.change)
					}
					wakes(w, loop, byClient)
					wait(30 * time.Second)
					if row.later != nil {
						w.with(row.later)
						loop.Deliver(w.seen())
					}
					wait(row.after - 30*time.Second)
					expect(t, w, "recorded", row.want, failed)
					expect(t, w, "told", row.want == "pod-uid", told)
				})
			})
		}
	}
}

// A client that ends a doze leaves no mark, and the sidecar may restart before PostgreSQL does.
func TestReadiness_isRestoredOnceNoDozeIsKnown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*world)
		want   bool
	}{
		{"an awake cluster", func(*world) {}, true},
		{"not a dozing one", func(w *world) { w.view.Dozing, w.view.DozingSince = true, time.Now() }, false},
		{"nor one whose doze ends", func(w *world) { w.view.DozingSince = time.Now() }, false},
		{"nor one that a person has fenced", func(w *world) { w.view.Fenced = true }, false},
		{"nor one whose fence may be under way", func(w *world) {
			w.view.Annotations[contract.AnnotationAnnounced] = contract.Announcement{PodUID: "pod-uid", Deadline: time.Now().Add(time.Second), Doze: true}.String()
		}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				dozes(w)
				row.change(w)
				w.instance.ready, w.inUse = false, true
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				synctest.Wait()
				expect(t, w, "ready", row.want, func(w *world) bool { return w.instance.ready })
			})
		})
	}
}

// The API server is away when the sidecar starts, and an earlier process may have fenced the instance.
func TestReadiness_isKeptWithdrawnUntilPostgreSQLServes(t *testing.T) {
	t.Parallel()
	running := doze.Postmaster{Running: true, PID: 9}
	for _, row := range []struct {
		rule    string
		change  func(*instance)
		restore func(*instance) // has PostgreSQL serve
	}{
		{"a PostgreSQL that serves", func(*instance) {}, nil},
		{"one that is too busy to answer", func(i *instance) { i.busy = true }, nil},
		{"one that has stopped", func(i *instance) { i.postmaster = doze.Postmaster{} }, func(i *instance) { i.postmaster = running }},
		{"one that is being stopped", func(i *instance) { i.managed = true }, func(i *instance) { i.ignores = true }},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				dozes(w)
				w.instance.managed = false
				row.change(&w.instance)
			}, func(t *testing.T, w *world, _ *Loop) {
				wait(time.Minute)
				expect(t, w, "ready", row.restore == nil, func(w *world) bool { return w.instance.ready })
				if row.restore != nil {
					w.with(func(w *world) { row.restore(&w.instance) })
					wait(time.Second)
					expect(t, w, "ready", true, func(w *world) bool { return w.instance.ready })
				}
			})
		})
	}
}

// It is not kept from its Services by what was done before the Cluster was known.
func TestReadiness_isGivenBackOnceTheClusterIsKnown(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		dozes(w)
		w.instance.postmaster, w.inUse = doze.Postmaster{}, true
	}, func(t *testing.T, w *world, loop *Loop) {
		wait(10 * time.Second)
		expect(t, w, "ready", false, func(w *world) bool { return w.instance.ready })
		loop.Deliver(w.seen())
		wait(10 * time.Second)
		expect(t, w, "ready", true, func(w *world) bool { return w.instance.ready })
	})
}

// The process before this one may have sent the patch that fences the instance, on its way to a slow API server.
func TestReadiness_isKeptWithdrawnWhileAFenceMayBeUnderWay(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		held bool
	}{
		{"the gateway holds every client, so that the fence may have been requested", true},
		{"it does not", false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				dozes(w)
				w.inUse, w.away = true, true
				announcement := contract.Announcement{PodUID: "pod-uid", Deadline: time.Now().Add(time.Second), Doze: true}.String()
				w.view.Annotations[contract.AnnotationAnnounced] = announcement
				if row.held {
					w.view.Annotations[contract.AnnotationGatewayHolding] = announcement
				}
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(10 * time.Second)
				expect(t, w, "ready", !row.held, func(w *world) bool { return w.instance.ready })
				w.with(func(w *world) { w.away = false })
				wait(20 * time.Second)
				expect(t, w, "announced", "", func(w *world) string { return w.view.Annotations[contract.AnnotationAnnounced] })
				expect(t, w, "ready", true, func(w *world) bool { return w.instance.ready })
			})
		})
	}
}

func TestRestart_thatFailsIsNoticedByASidecarThatWasRestarted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		depth  string
		ago    time.Duration
		change func(*world)
		want   string
	}{
		{"a client has ended a doze", contract.DepthDoze, 50 * time.Second, nil, "pod-uid"},
		{"not if PostgreSQL runs: Services lead to the pod", contract.DepthDoze, 50 * time.Second, func(w *world) {
			w.instance.postmaster = doze.Postmaster{Running: true, PID: 9}
		}, ""},
		{"nor long ago: something else has stopped PostgreSQL", contract.DepthDoze, 3 * time.Minute, nil, ""},
		{"nor if it had hibernated", "", 50 * time.Second, nil, ""},
		{"nor if a person has fenced it since", contract.DepthDoze, 50 * time.Second, func(w *world) { w.view.Fenced = true }, ""},
		{"nor if it hibernates", contract.DepthDoze, 50 * time.Second, func(w *world) { w.view.Hibernating = true }, ""},
		{"nor on another instance", contract.DepthDoze, 50 * time.Second, func(w *world) { w.view.CurrentPrimary = "c-2" }, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			liveAfter(t, func(w *world) {
				dozes(w)
				wake, err := contract.LastWake{At: time.Now().Add(-row.ago), By: "10.0.0.9", Depth: row.depth}.Encode()
				if err != nil {
					t.Error(err)
				}
				w.view.Annotations[contract.AnnotationLastWake] = wake
				w.instance.postmaster, w.inUse = doze.Postmaster{}, true // so that it does not doze again
				if row.change != nil {
					row.change(w)
				}
			}, func(t *testing.T, w *world, loop *Loop) {
				loop.Deliver(w.seen())
				wait(61 * time.Second)
				expect(t, w, "recorded", row.want, func(w *world) string { return w.view.RestartFailed })
				expect(t, w, "made unready", row.want != "", func(w *world) bool { return w.instance.withdrew })
				w.with(func(w *world) { w.instance.postmaster = doze.Postmaster{Running: true, PID: 10} })
				wait(time.Second)
				expect(t, w, "recorded", "", func(w *world) string { return w.view.RestartFailed })
				expect(t, w, "ready", true, func(w *world) bool { return w.instance.ready })
			})
		})
	}
}

// The mark goes once PostgreSQL serves, in whichever pod, so that it says nothing of the next wake.
func TestRestart_thatHasFailedIsForgottenOncePostgreSQLServes(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		dozes(w)
		w.view.RestartFailed, w.instance.postmaster = "before", doze.Postmaster{}
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(time.Minute)
		expect(t, w, "recorded", "before", func(w *world) string { return w.view.RestartFailed })
		expect(t, w, "ready", false, func(w *world) bool { return w.instance.ready })
		w.with(func(w *world) { w.instance.postmaster = doze.Postmaster{Running: true, PID: 9} })
		wait(time.Second)
		expect(t, w, "recorded", "", func(w *world) string { return w.view.RestartFailed })
		expect(t, w, "ready", true, func(w *world) bool { return w.instance.ready })
	})
}

// Each preparation costs a checkpoint and a WAL file.
func TestDoze_preparesAgainAfterTwiceTheIdleTimeWhileTheArchiverIsSlow(t *testing.T) {
	t.Parallel()
	prepare := func(w *world) {
		dozes(w)
		w.view.Annotations[contract.AnnotationInactivityMinutes] = "1440"
		w.instance.refuses = idle.ReasonArchiverSlow
	}
	liveAfter(t, prepare, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(23 * time.Hour)
		expect(t, w, "preparations", 12, func(w *world) int { return w.instance.prepared }) // after half a minute, 1, 2, 4, ...
		expect(t, w, "an Event says why", true, func(w *world) bool { return slices.Contains(w.events, "DozeBlocked") })
		w.report(activity.Ended{Peer: peer, Received: 700, At: time.Now()})
		wait(time.Hour)
		expect(t, w, "preparations after a use", 19, func(w *world) int { return w.instance.prepared })
		wait(24 * time.Hour)
		expect(t, w, "hibernated at its time", true, asleep)
	})
}

func TestDoze_preparesLessOftenTheLongerTheGatewayIsAway(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		dozes(w)
		w.view.Annotations[contract.AnnotationInactivityMinutes], w.gatewayAway = "1440", true
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(23 * time.Hour)
		expect(t, w, "preparations", 31, func(w *world) int { return w.instance.prepared }) // after 10 s, 20 s, 40 s, ..., and then every hour
	})
}

func TestDoze_ofAnArchiverThatWasSlowOnce(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) {
		dozes(w)
		w.instance.refuses = idle.ReasonArchiverSlow
	}, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(50 * time.Second)
		expect(t, w, "preparations", 1, func(w *world) int { return w.instance.prepared })
		w.with(func(w *world) { w.instance.refuses = "" })
		wait(30 * time.Second)
		expect(t, w, "dozes after twice the time", true, dozing)
	})
}

func TestHandover_waitsForALateArchiver(t *testing.T) {
	t.Parallel()
	liveAfter(t, func(w *world) { w.instance.late = idle.ReasonArchiverBehind }, func(t *testing.T, w *world, loop *Loop) {
		loop.Deliver(w.seen())
		wait(10 * time.Minute)
		expect(t, w, "asleep", false, asleep)
		expect(t, w, "announcements", 0, func(w *world) int { return len(w.announcements) })
		expect(t, w, "reason", idle.ReasonArchiverBehind, func(w *world) idle.Reason { return w.status.Decision.Reason })
		w.with(func(w *world) { w.instance.late = "" })
		wait(6 * time.Minute)
		expect(t, w, "asleep once it has caught up", true, asleep)
	})
}
