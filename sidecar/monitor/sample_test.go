package monitor

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

func TestSample_makesAnObservation(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		i.sample.Blockers, i.sample.Scheduler, i.sample.InactiveSlots = []idle.Reason{idle.ReasonAdvisoryLock}, true, 3
		i.sample.Tally.Add(activity.Session{BackendType: "client backend", User: "app", State: "active"}, activity.Rules{})
		seen, _ := m.Sample(t.Context())
		if !seen.Gap || !seen.Reported || !seen.Local || !seen.Scheduler || len(seen.InUse) != 1 || !slices.Equal(seen.Blockers, i.sample.Blockers) {
			t.Errorf("%+v", seen)
		}
		status := m.Status()
		if !status.Known || !status.Scheduler || status.InactiveSlots != 3 || len(status.ServerBlockers) != 1 || !status.SampledAt.Equal(time.Now()) {
			t.Errorf("%+v", status)
		}
		if seen, _ = m.Sample(t.Context()); seen.Gap {
			t.Error("between two samples there is a gap")
		}
		i.sample.Started++
		i.sampleErr = errFake
		_, _ = m.Sample(t.Context())
		i.sampleErr = nil
		if seen, _ = m.Sample(t.Context()); !seen.Gap {
			t.Error("a restart of the server while a sample failed is no gap")
		}
	})
}

func TestSample_isUnknownWhereItIsNotPermittedOrFails(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		make     func(*instance, *Monitor)
		reported bool
	}{
		{"no session may be held", func(_ *instance, m *Monitor) { m.Configure(Settings{}) }, false},
		{"the server cannot be sampled, and the kernel still reports sessions", func(i *instance, _ *Monitor) { i.sampleErr = errFake }, true},
		{"the server is shutting down", func(i *instance, _ *Monitor) { i.shuttingDown = true }, true},
		{"the server has not answered too often while a session is held, and the kernel still reports sessions", func(i *instance, m *Monitor) {
			m.Configure(listening)
			_, _ = m.Sample(t.Context())
			time.Sleep(probeEvery)
			m.prober.timeouts, i.probeErr = maximumTimeouts-1, postgres.ErrTimeout
		}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				i.sample.Blockers = []idle.Reason{idle.ReasonAdvisoryLock}
				_, _ = m.Sample(t.Context())
				row.make(i, m)
				seen, _ := m.Sample(t.Context())
				if !seen.Unknown || seen.Reported != row.reported {
					t.Errorf("%+v", seen)
				}
				if now := m.Status(); now.Known || now.Reported != row.reported || now.ServerBlockers != nil {
					t.Errorf("%+v", now)
				}
				if i.connected || len(m.Terminable()) != 0 {
					t.Errorf("the sampler's session is open: %t, %+v can be terminated", i.connected, m.Terminable())
				}
				i.sampleErr, i.probeErr, i.shuttingDown = nil, nil, false
				m.Configure(permitted)
				if seen, _ = m.Sample(t.Context()); seen.Unknown || seen.Gap == row.reported {
					t.Errorf("afterwards: %+v", seen)
				}
			})
		})
	}
}

// A server that is only slow keeps its control channel, because what that misses counts as use.
func TestSample_thatFailsKeepsTheChannelUnlessTheServerShutsDown(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		fails func(*instance)
		kept  bool
	}{
		{"it only takes too long", func(*instance) {}, true},
		{"it has not answered once", func(i *instance) { i.probeErr = postgres.ErrTimeout }, true},
		{"it is shutting down", func(i *instance) { i.shuttingDown = true }, false},
		{"it is gone", func(i *instance) { i.probeErr = postgres.ErrUnreachable }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				m.Configure(listening)
				_, _ = m.Sample(t.Context())
				synctest.Wait()
				i.sampleErr = errFake
				row.fails(i)
				seen, _ := m.Sample(t.Context())
				if !seen.Unknown || i.listener.Connected() != row.kept || m.Status().ListenerConnected != row.kept {
					t.Errorf("%+v, connected %t", seen, i.listener.Connected())
				}
				i.sampleErr, i.probeErr, i.shuttingDown = nil, nil, false
				_, _ = m.Sample(t.Context())
				synctest.Wait()
				if again, _ := m.Sample(t.Context()); again.Gap || !i.listener.Connected() {
					t.Errorf("afterwards: %+v, connected %t", again, i.listener.Connected())
				}
			})
		})
	}
}

func TestSample_withoutSocketEventsARiseIsAUse(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		openErr   error
		app, main int64
		used      bool
	}{
		{"a login", unsupported, 1, 0, true},
		{"a login at the same time as one to the maintenance database", unsupported, 1, 1, true},
		{"a login to the maintenance database, which may be a probe's", unsupported, 0, 1, false},
		{"a login while socket events are received", nil, 1, 0, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				i.openErr = row.openErr
				_, _ = m.Sample(t.Context())
				i.sample.Ledger = activity.Ledger{"app": {Sessions: row.app}, "postgres": {Sessions: row.main}}
				seen, _ := m.Sample(t.Context())
				if got := !seen.Used.IsZero(); got != row.used || seen.Reported != (row.openErr == nil) {
					t.Errorf("used: %t, want %t: %+v", got, row.used, seen)
				}
			})
		})
	}
}

func TestSample_aRestingSessionCountsUpToItsLastStatement(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		settings := permitted
		settings.Rules.Queries = true
		m.Configure(settings)
		rest := func(changed int64, ago time.Duration) time.Duration {
			i.sample.Tally = activity.Tally{}
			i.sample.Tally.Add(activity.Session{
				BackendType: "client backend", User: "app", State: "idle", PID: 11, Changed: changed, IdleFor: ago,
			}, settings.Rules)
			seen, _ := m.Sample(t.Context())
			return time.Since(seen.Used)
		}
		if got := rest(1, time.Hour); got != time.Hour {
			t.Errorf("used %s ago", got)
		}
		time.Sleep(time.Minute)
		if got := rest(1, time.Hour+time.Minute); got != time.Hour+time.Minute {
			t.Errorf("without a change used %s ago", got)
		}
		time.Sleep(time.Minute)
		if got := rest(2, time.Hour); got != time.Minute {
			t.Errorf("with a change, by a clock that was set, used %s ago", got)
		}
		i.sample.Tally.Add(activity.Session{
			BackendType: "client backend", User: "cnpg_pooler_pgbouncer", Database: "postgres", State: "idle", PID: 12, Changed: 3,
		}, settings.Rules)
		time.Sleep(time.Minute)
		if seen, _ := m.Sample(t.Context()); time.Since(seen.Used) != time.Hour {
			t.Errorf("the pooler's authentication is a use %s ago", time.Since(seen.Used))
		}
		if sessions := m.Terminable(); len(sessions) != 2 || sessions[0].PID != 11 {
			t.Errorf("%+v can be terminated", sessions)
		}
	})
}

func TestSampleOnce_samplesWhereNoSessionMayBeHeld(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(Settings{})
		if sample, err := m.SampleOnce(t.Context()); err != nil || sample.Tally.HasClients() || i.connected {
			t.Errorf("an idle server is in use, or the session is kept: %v", err)
		}
		i.sample.Tally.Add(activity.Session{BackendType: "autovacuum worker", Wraparound: true}, activity.Rules{})
		if sample, err := m.SampleOnce(t.Context()); err != nil || sample.Tally.HasClients() {
			t.Errorf("a vacuum is a client: %v", err)
		}
		i.sample.Tally.Add(activity.Session{BackendType: "client backend", User: "app"}, activity.Rules{})
		if sample, err := m.SampleOnce(t.Context()); err != nil || !sample.Tally.HasClients() {
			t.Errorf("a client is none: %v", err)
		}
		m.Drain()
		if _, err := m.SampleOnce(t.Context()); !errors.Is(err, errDrained) {
			t.Errorf("a drained server was sampled: %v", err)
		}
	})
}
