package monitor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// listening are settings with a control channel.
var listening = Settings{Connect: true, Database: "app"}

func TestProbe_isMadeOnlyWhileASessionIsHeld(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		settings Settings
		openErr  error
		sampled  error
		held     bool
	}{
		{"an instance without a control channel is sampled now and then", permitted, nil, nil, false},
		{"the control channel holds a session", listening, nil, nil, true},
		{"an instance that is sampled every second holds a session", permitted, unsupported, nil, true},
		{"an instance that cannot be sampled holds none", listening, nil, errFake, false},
		{"an instance that may not be connected to holds none", Settings{Database: "app"}, nil, nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				m.Configure(row.settings)
				i.openErr, i.sampleErr = row.openErr, row.sampled
				_, _ = m.Sample(t.Context())
				synctest.Wait()
				if got := !m.NextProbe().IsZero(); got != row.held {
					t.Errorf("a probe is due: %t, want %t", got, row.held)
				}
				if m.Probe(t.Context()); (i.probes != 0) != row.held || i.connected && !row.held {
					t.Errorf("%d probes, the sampler's session is open: %t", i.probes, i.connected)
				}
			})
		})
	}
}

func TestSample_probesAtMostEveryTwoSeconds(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		i.openErr = unsupported // it is sampled every second
		for range 60 {
			_, _ = m.Sample(t.Context())
			time.Sleep(time.Second)
		}
		if i.probes < 29 || i.probes > 30 {
			t.Errorf("%d probes in a minute", i.probes)
		}
	})
}

func TestProbe_closesEverySession(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*instance)
	}{
		{"of a server that shuts down", func(i *instance) { i.shuttingDown = true }},
		{"of a server that is gone", func(i *instance) { i.probeErr, i.sampleErr = postgres.ErrUnreachable, errFake }},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				m.Configure(listening)
				_, _ = m.Sample(t.Context())
				synctest.Wait()
				row.change(i)
				time.Sleep(time.Until(m.NextProbe()))
				m.Probe(t.Context())
				synctest.Wait()
				if i.connected || i.listener.Connected() {
					t.Error("a session is open")
				}
				if !m.NextSample().Equal(time.Now()) {
					t.Errorf("the next sample is at %s", m.NextSample())
				}
				if seen, _ := m.Sample(t.Context()); !seen.Unknown || !m.NextProbe().IsZero() || !m.NextSample().IsZero() {
					t.Errorf("%+v, then a probe at %s", seen, m.NextProbe())
				}
			})
		})
	}
}

func TestDrain_closesAtOnceAndEndsByItself(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		synctest.Wait()
		done := make(chan struct{})
		go func() { defer close(done); m.Drain() }()
		<-done
		synctest.Wait()
		if i.connected || i.listener.Connected() {
			t.Error("a session is open")
		}
		time.Sleep(drainLasts - time.Second)
		if seen, _ := m.Sample(t.Context()); !seen.Unknown || i.connected {
			t.Errorf("drained: %+v", seen)
		}
		time.Sleep(time.Second)
		i.shuttingDown = true
		if seen, _ := m.Sample(t.Context()); !seen.Unknown || !m.Drained() {
			t.Errorf("a drain of a server that shuts down has ended: %+v", seen)
		}
		i.shuttingDown = false
		if seen, _ := m.Sample(t.Context()); seen.Unknown || !seen.Gap || m.Drained() {
			t.Errorf("after the drain: %+v", seen)
		}
	})
}

func TestDrain_whileASampleIsTaken(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		i.sampled = m.Drain
		_, _ = m.Sample(t.Context())
		synctest.Wait()
		if i.connected || i.listener != nil {
			t.Error("a session is open")
		}
	})
}

func TestConfigure_closesWhatIsNotPermitted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule     string
		settings func() Settings
	}{
		{"where no session may be held", func() Settings { return Settings{Database: "app"} }},
		{"while it is quiet", func() Settings {
			return Settings{Connect: true, Database: "app", QuietUntil: time.Now().Add(10 * time.Second)}
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				m.Configure(listening)
				_, _ = m.Sample(t.Context())
				synctest.Wait()
				m.Configure(row.settings())
				synctest.Wait()
				if i.connected || i.listener.Connected() {
					t.Error("a session is open")
				}
				_, _ = m.Sample(t.Context())
				synctest.Wait()
				if i.connected || i.listener.Connected() {
					t.Error("a session is open after a sample")
				}
			})
		})
	}
	t.Run("and samples when it is quiet no more", func(t *testing.T) {
		t.Parallel()
		watched(t, func(t *testing.T, i *instance, m *Monitor) {
			until := time.Now().Add(10 * time.Second)
			m.Configure(Settings{Connect: true, Database: "app", QuietUntil: until})
			_, _ = m.Sample(t.Context())
			if !m.NextSample().Equal(until) {
				t.Errorf("the next sample is at %s", m.NextSample())
			}
			time.Sleep(time.Until(until))
			if m.NextSample().After(time.Now()) || m.NextSample().IsZero() {
				t.Errorf("the next sample is not due, but at %s", m.NextSample())
			}
			_, _ = m.Sample(t.Context())
			synctest.Wait()
			if i.listener == nil || !i.listener.Connected() || !m.NextSample().IsZero() {
				t.Errorf("nobody listens, or another sample is due: %s", m.NextSample())
			}
		})
	})
}

func TestSampleSoon_keepsSamplesApart(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, _ *instance, m *Monitor) {
		begun := time.Now()
		_, _ = m.Sample(t.Context())
		if m.SampleSoon(); !m.NextSample().Equal(begun.Add(sampleApart)) {
			t.Errorf("the next sample is at %s", m.NextSample())
		}
		time.Sleep(time.Minute)
		if m.SampleSoon(); m.NextSample().After(time.Now()) {
			t.Errorf("the next sample is at %s", m.NextSample())
		}
	})
}

// A node that gives PostgreSQL no processor for a second must not restart the idle clock: a channel that was closed meanwhile may have
// missed a notification.
func TestProbe_keepsTheSessionsOfASlowServer(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		m.Configure(listening)
		_, _ = m.Sample(t.Context())
		synctest.Wait()
		probe := func(err error) {
			i.probeErr = err
			time.Sleep(time.Until(m.NextProbe()))
			m.Probe(t.Context())
			synctest.Wait()
		}
		for range 3 {
			for range maximumTimeouts - 1 {
				probe(postgres.ErrTimeout)
			}
			if !i.listener.Connected() {
				t.Fatal("timeouts close the control channel")
			}
			probe(nil)
		}
		for range maximumTimeouts {
			probe(postgres.ErrTimeout)
		}
		if i.connected || i.listener.Connected() {
			t.Error("a session is held although the server may be shutting down")
		}
		closed := time.Now()
		if seen, _ := m.Sample(t.Context()); !seen.Used.Equal(closed) {
			t.Errorf("what the control channel missed is no use: %+v", seen)
		}
		synctest.Wait()
		if probe(postgres.ErrTimeout); !i.listener.Connected() {
			t.Error("one timeout closes the sessions that the server has accepted since")
		}
	})
}
