package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

// patience bounds every wait; a passing test never reaches it.
const patience = 2 * time.Minute

// onServer makes a monitor of a real server, with the kernel's own socket events.
func onServer(t *testing.T, s *postgrestest.Server) (*instance, *Monitor) {
	t.Helper()
	s.Execute(t, "create role cnpg_metrics_exporter login in role pg_monitor", "create role app login", "create database app owner app")
	i := &instance{addrs: NewClientAddrs()}
	server := postgres.NewServer(s.Directory, s.Port, i.addrs.AddProbe)
	m := New(Parts{
		Sampler: postgres.NewSampler(server), Server: server, ClientAddrs: i.addrs, Checkpoints: i, Observer: i,
		Logger:     slog.New(slog.DiscardHandler),
		OpenEvents: func() (SocketEvents, error) { return sockets.Listen(s.Port) },
		Listen: func(database string, notify func(postgres.Notification), failed func(error)) Listener {
			return postgres.NewListener(server, database, notify, failed)
		},
	})
	t.Cleanup(m.Close)
	m.Configure(listening)
	for deadline := time.Now().Add(patience); !m.Status().ListenerConnected; {
		if seen := sampleOf(t, m); time.Now().After(deadline) { // on a slow machine a sample may take too long, and be unknown
			t.Fatalf("the server is not watched: %+v", seen)
		}
	}
	return i, m
}

func sampleOf(t *testing.T, m *Monitor) idle.Observation {
	t.Helper()
	seen, _ := m.Sample(t.Context())
	return seen
}

// handleUntil handles events until a session is judged otherwise than by the given verdicts, and returns its verdict and what
// changed meanwhile. One event may bring several sessions.
func handleUntil(t *testing.T, i *instance, m *Monitor, except ...activity.Verdict) (activity.Verdict, Change) {
	t.Helper()
	judged := len(i.verdicts)
	timeout, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for change := (Change{}); ; {
		select {
		case e := <-m.Events():
			change.merge(m.Handle(e))
			for ; judged < len(i.verdicts); judged++ {
				if verdict := i.verdicts[judged]; !slices.Contains(except, verdict) {
					return verdict, change
				}
			}
		case <-timeout.Done():
			t.Fatal("no session is reported")
		}
	}
}

func TestMonitor_ofAServerThatTrustsEverybodyIsIdle(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		s.AddRule(t, "host all all all trust")
		i, m := onServer(t, s)
		for range 5 {
			m.Probe(t.Context())
			// A sample that contained the probe's session, which the server opened here, has already classified it.
			verdict, change := handleUntil(t, i, m)
			if verdict != activity.VerdictProbe && verdict != activity.VerdictInfrastructure || !change.Used.IsZero() {
				t.Errorf("a probe is %s: %+v", verdict, change)
			}
			if seen := sampleOf(t, m); seen.Unknown || seen.Gap || !seen.Reported || len(seen.InUse) != 0 || !seen.Used.IsZero() {
				t.Errorf("an idle server is %+v", seen)
			}
		}
	})
}

func TestMonitor_ofAServerCountsAWrongPassword(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		i, m := onServer(t, s)
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://app:wrong@127.0.0.1:%d/app?sslmode=disable", s.Port))
		if err == nil {
			_ = conn.Close(t.Context())
			t.Fatal("a wrong password was taken")
		}
		verdict, change := handleUntil(t, i, m, activity.VerdictProbe, activity.VerdictInfrastructure) // a probe of an earlier sample
		if verdict != activity.VerdictUnseen || change.Used.IsZero() {
			t.Errorf("it is %s: %+v", verdict, change)
		}
		if seen := sampleOf(t, m); seen.Used.IsZero() || len(seen.InUse) != 0 {
			t.Errorf("%+v", seen)
		}
	})
}
