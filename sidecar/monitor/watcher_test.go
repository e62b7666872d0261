package monitor

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

// decide takes a sample and decides with a threshold that has long passed.
func decide(t *testing.T, m *Monitor, state idle.State) (idle.State, idle.Decision) {
	t.Helper()
	seen, _ := m.Sample(t.Context())
	return idle.Decide(idle.Policy{Enabled: true, Threshold: time.Minute}, false, state, seen, time.Now())
}

func TestSocketWatcher_aFailureIsNeverIdle(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		fail func(*instance, *Monitor)
	}{
		{"before the server is sampled", func(i *instance, _ *Monitor) { i.sampling = func() { i.report(errFake) } }},
		{"when the server has been sampled", func(i *instance, _ *Monitor) { i.sampled = func() { i.report(errFake) } }},
		{"with the end of a session that does not count", func(i *instance, _ *Monitor) {
			bare := activity.Ended{Peer: client(time.Now()).Peer, Received: 1}
			i.sampled = func() { i.report(errFake, bare) }
		}},
		{"with the end of a client's session", func(i *instance, _ *Monitor) {
			i.sampled = func() { i.report(errFake, client(time.Now())) }
		}},
		{"between two samples", func(i *instance, m *Monitor) { i.report(errFake); handleAll(m) }},
		{"between two samples, unhandled", func(i *instance, _ *Monitor) { i.report(errFake) }},
		{"and again when it is opened", func(i *instance, m *Monitor) { i.report(errFake); handleAll(m); i.openErr = unsupported }},
		{"and again when it is proven", func(i *instance, m *Monitor) { i.report(errFake); handleAll(m); i.proofErr = errFake }},
		{"and again when it is proven, of a kernel that reports no more", func(i *instance, m *Monitor) {
			i.report(errFake)
			handleAll(m)
			i.proofErr = unsupported
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				state, _ := decide(t, m, idle.State{})
				time.Sleep(time.Hour) // the bubble's clock
				state, decision := decide(t, m, state)
				if decision.Action != idle.ActionHibernate {
					t.Fatalf("an idle instance is kept awake: %s", decision.Reason)
				}
				time.Sleep(2 * time.Second)
				row.fail(i, m)
				failed := time.Now()
				state, decision = decide(t, m, state)
				if decision.Action != idle.ActionNone || state.IdleSince.Before(failed) {
					t.Errorf("the decision is %s, idle since %s before the failure", decision.Reason, failed.Sub(state.IdleSince))
				}
				time.Sleep(2 * time.Second)
				if state, decision = decide(t, m, state); decision.Action != idle.ActionNone || state.IdleSince.Before(failed) {
					t.Errorf("the next decision is %s, idle since %s before the failure", decision.Reason, failed.Sub(state.IdleSince))
				}
			})
		})
	}
}

func TestSocketWatcher_isBegunAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule              string
		openErr, proofErr error
		wait              time.Duration
		opened            int
	}{
		{"after a failure of the proof with the next sample", nil, errFake, time.Second, 3},
		{"after the kernel's silence not at once", nil, unsupported, time.Second, 2},
		{"after the kernel's silence in ten seconds", nil, unsupported, firstRetry, 3},
		{"after the kernel's refusal not at once", unsupported, nil, time.Second, 2},
		{"after the kernel's refusal in ten seconds", unsupported, nil, firstRetry, 3},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				var log strings.Builder
				m.sockets.logger = slog.New(slog.NewTextHandler(&log, nil))
				_, _ = m.Sample(t.Context())
				i.report(errFake)
				handleAll(m)
				if m.Status().Reported {
					t.Error("socket events are received after a failure")
				}
				log.Reset()
				i.openErr, i.proofErr = row.openErr, row.proofErr
				seen, _ := m.Sample(t.Context())
				if seen.Reported || m.Status().Unsupported != (row.openErr != nil || errors.Is(row.proofErr, unsupported)) {
					t.Errorf("reported %t, unsupported %t", seen.Reported, m.Status().Unsupported)
				}
				if lines := strings.Count(log.String(), "level=WARN"); lines != 1 {
					t.Errorf("the failure is logged %d times: %s", lines, log.String())
				}
				i.openErr, i.proofErr = nil, nil
				time.Sleep(row.wait)
				seen, _ = m.Sample(t.Context())
				if i.opened != row.opened || seen.Reported != (row.opened == 3) || seen.Reported && (!seen.Gap || m.Status().Unsupported) {
					t.Errorf("opened %d times, want %d: %+v", i.opened, row.opened, seen)
				}
			})
		})
	}
}

func TestSocketWatcher_pausesUnderAStorm(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		time.Sleep(time.Minute)
		i.report(nil, client(time.Now()))
		if change := handleAll(m); change.InUse || change.Used.IsZero() || m.NextSample().IsZero() {
			t.Errorf("the first use: %+v", change)
		}
		_, _ = m.Sample(t.Context())
		time.Sleep(pauseLasts / 2)
		i.report(nil, client(time.Now()))
		if change := handleAll(m); !change.InUse || m.sockets.watching() || !m.NextSample().Equal(time.Now().Add(pauseLasts)) {
			t.Errorf("the second use: %+v, the next sample at %s", change, m.NextSample())
		}
		time.Sleep(pauseLasts)
		seen, _ := m.Sample(t.Context())
		if !seen.Reported || !m.sockets.watching() || !seen.Used.Equal(time.Now()) {
			t.Errorf("the next sample: %+v", seen)
		}
		if seen, _ = m.Sample(t.Context()); seen.Gap || !seen.Used.IsZero() {
			t.Errorf("the sample after it: %+v", seen)
		}
	})
}

func TestSocketWatcher_pausesInASampleToo(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		i.report(nil, client(time.Now()))
		handleAll(m)
		i.sampled = func() { i.report(nil, client(time.Now())) }
		seen, _ := m.Sample(t.Context())
		if seen.Used.IsZero() || !m.sockets.paused || !m.NextSample().Equal(time.Now().Add(pauseLasts)) {
			t.Errorf("%+v, the next sample at %s", seen, m.NextSample())
		}
		i.proofErr = errFake
		time.Sleep(pauseLasts)
		if seen, _ = m.Sample(t.Context()); seen.Reported || !seen.Gap || !m.NextSample().IsZero() {
			t.Errorf("it is begun again at once: %+v", seen)
		}
	})
}

// On an overloaded machine the waiting goroutine may not run for seconds.
func TestSample_whatTheKernelHasReadyBelongsToIt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		report   report
		observed func(idle.Observation) bool
	}{
		{"a session that ended", report{ended: []activity.Ended{client(time.Now())}}, func(o idle.Observation) bool { return !o.Used.IsZero() }},
		{"lost events", report{err: sockets.ErrLost}, func(o idle.Observation) bool { return !o.Used.IsZero() }},
		{"a failure", report{err: errFake}, func(o idle.Observation) bool { return o.Gap && !o.Reported }},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				_, _ = m.Sample(t.Context())
				time.Sleep(time.Minute)
				i.source.stalled = true
				i.sampling = func() { i.report(row.report.err, row.report.ended...) }
				if seen, _ := m.Sample(t.Context()); !row.observed(seen) {
					t.Errorf("%+v", seen)
				}
			})
		})
	}
}

// Otherwise the cluster would count as in use until the next sample, a minute later.
func TestSample_isRepeatedForASessionThatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		i.sample.Tally.Add(activity.Session{BackendType: "client backend", User: "app", State: "active", Peer: client(time.Now()).Peer}, activity.Rules{})
		if _, _ = m.Sample(t.Context()); !m.NextSample().IsZero() {
			t.Errorf("the next sample of a session that stays open is due at %s", m.NextSample())
		}
		time.Sleep(time.Minute)
		i.sampled = func() { i.report(nil, client(time.Now())) }
		if seen, _ := m.Sample(t.Context()); len(seen.InUse) == 0 || !m.NextSample().Equal(time.Now().Add(sampleApart)) {
			t.Errorf("%+v, the next sample is due at %s", seen, m.NextSample())
		}
	})
}

func TestSample_isNotIdleWhileSomebodyConnects(t *testing.T) {
	t.Parallel()
	somebody := activity.Open{Peer: client(time.Now()).Peer, Received: 700}
	for _, row := range []struct {
		rule    string
		open    activity.Open
		prepare func(*instance, *Monitor)
		blocks  bool
	}{
		{"a client that is logging in or leaving", somebody, nil, true},
		{"a bare connect", activity.Open{Peer: somebody.Peer}, nil, false},
		{"a session that the sample found", somebody, func(i *instance, _ *Monitor) {
			i.sample.Tally.Add(activity.Session{BackendType: "client backend", User: "monitoring", Peer: somebody.Peer},
				activity.Rules{Ignore: []idle.Pattern{{User: "monitoring"}}})
		}, false},
		{"an address that is ignored", somebody, func(_ *instance, m *Monitor) {
			m.Configure(Settings{Connect: true, Rules: activity.Rules{Ignore: []idle.Pattern{{Client: netip.PrefixFrom(somebody.Peer.Addr(), 32)}}}})
		}, false},
		{"another instance", somebody, func(_ *instance, m *Monitor) {
			m.Configure(Settings{Connect: true, Others: []netip.Addr{somebody.Peer.Addr()}})
		}, false},
		{"a probe of the gateway's", somebody, func(i *instance, _ *Monitor) {
			i.addrs.Add(somebody.Peer.Addr(), contract.ClientAddress{Port: somebody.Peer.Port(), Peer: somebody.Peer, Probe: true})
		}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				state, _ := decide(t, m, idle.State{})
				time.Sleep(time.Hour) // the bubble's clock
				idleSince := state.IdleSince
				i.open = []activity.Open{row.open}
				if row.prepare != nil {
					row.prepare(i, m)
				}
				state, decision := decide(t, m, state)
				if blocks := decision.Reason == idle.ReasonConnecting; blocks != row.blocks || blocks != (decision.Action == idle.ActionNone) {
					t.Errorf("the decision is %s", decision.Reason)
				}
				if again := m.NextSample(); again.IsZero() == row.blocks {
					t.Errorf("the next sample is taken at %s", again)
				}
				if !state.IdleSince.Equal(idleSince) {
					t.Errorf("idle since %s, want %s: what it comes to is not known yet", state.IdleSince, idleSince)
				}
			})
		})
	}
}

func TestSample_isUnknownWhereTheKernelListsNothing(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		i.listErr = errFake
		if seen, _ := m.Sample(t.Context()); seen.Reported || !seen.Gap {
			t.Errorf("the list fails: %+v", seen)
		}
		if seen, _ := m.Sample(t.Context()); seen.Reported || m.sockets.watching() {
			t.Errorf("it cannot be proven: %+v", seen)
		}
	})
}

func TestHandle_lostEventsAreAUse(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		time.Sleep(time.Minute)
		i.report(sockets.ErrLost)
		change := handleAll(m)
		if !change.Used.Equal(time.Now()) || !m.sockets.watching() || !slices.Contains(i.verdicts, activity.VerdictLost) {
			t.Errorf("%+v, verdicts %v", change, i.verdicts)
		}
		if seen, _ := m.Sample(t.Context()); seen.Used.IsZero() {
			t.Error("the sample does not know of it")
		}
	})
}

func TestHandle_eventsOfAnEarlierSourceAreNothing(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		stale := Event{source: i.source, err: errFake}
		i.report(errFake)
		handleAll(m)
		_, _ = m.Sample(t.Context())
		if m.Handle(stale); !m.sockets.watching() {
			t.Error("the failure of another source ended this one")
		}
	})
}

func TestSample_sessionsThatEndDuringTheProofAreJudged(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		i.proven = []activity.Ended{client(time.Now())}
		if seen, _ := m.Sample(t.Context()); !seen.Used.Equal(time.Now()) {
			t.Errorf("%+v", seen)
		}
	})
}

// A kernel without support is asked less and less often, and one whose report was late soon.
func TestSocketWatcher_waitsTwiceAsLongForASilentKernel(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		i.proofErr = unsupported
		began := time.Now()
		var tried []time.Duration
		for opened := i.opened; time.Since(began) < 20*time.Minute; time.Sleep(time.Second) {
			if _, _ = m.Sample(t.Context()); i.opened != opened {
				opened = i.opened
				tried = append(tried, time.Since(began))
			}
		}
		want := []time.Duration{0, 10 * time.Second, 30 * time.Second, 70 * time.Second, 150 * time.Second, 310 * time.Second, 610 * time.Second, 910 * time.Second}
		if !slices.Equal(tried, want) {
			t.Errorf("tried after %v, want %v", tried, want)
		}
	})
}
