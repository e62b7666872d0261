package postgres

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

// probes are the addresses from which a server was probed.
type probes struct{ sync.Map }

func (p *probes) add(local netip.AddrPort) (closed func()) {
	p.Store(local, true)
	return func() {}
}

func (p *probes) has(peer netip.AddrPort) bool {
	_, ok := p.Load(peer)
	return ok
}

// expectVerdict waits for the next reported session and compares its verdict.
func expectVerdict(t *testing.T, events *sockets.Listener, known *probes, want activity.Verdict) {
	t.Helper()
	reports, err := events.Receive(time.Now().Add(patience))
	if err != nil || len(reports) != 1 {
		t.Fatalf("%d sessions are reported (%v), want one", len(reports), err)
	}
	if got := activity.Judge(reports[0], activity.Surroundings{Probe: known.has(reports[0].Peer)}); got != want {
		t.Errorf("%+v is judged %s, want %s", reports[0], got, want)
	}
}

func TestShuttingDown_isNoClientWhateverTheRules(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		prepare(t, s)
		for _, row := range []struct {
			rule, hba string // a rule of pg_hba.conf, placed before those of earlier rows
			reported  bool
		}{
			{"a server that asks for a password", "", true},
			{"a server that trusts the loopback interface only", "host all all 127.0.0.1/32 trust", true},
			{"a server that trusts everybody", "host all all all trust", true},
			{"a server that asks for a certificate", "hostssl all all all cert\nhost all all all reject", false},
		} {
			t.Run(row.rule, func(t *testing.T) {
				if row.hba != "" {
					s.AddRule(t, row.hba)
				}
				probesAreNoClients(t, s, row.reported)
			})
		}
	})
}

// probesAreNoClients probes a server and checks that the sample, the counters and the reports show no client.
func probesAreNoClients(t *testing.T, s *postgrestest.Server, reported bool) {
	t.Helper()
	known := &probes{}
	server := patient(NewServer(s.Directory, s.Port, known.add))
	events, err := sockets.Listen(s.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	probe := func() {
		t.Helper()
		if refusing, err := server.ShuttingDown(t.Context()); refusing || err != nil {
			t.Fatalf("refusing %t, %v", refusing, err)
		}
	}
	sampler := NewSampler(server)
	defer sampler.Close()
	rules := instances
	rules.Probe = known.has
	sample := func() activity.Ledger {
		t.Helper()
		got, err := sampler.Sample(t.Context(), rules)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Tally.InUse()) != 0 {
			t.Errorf("a probe is in use: %v", got.Tally.ByState())
		}
		return got.Ledger
	}
	probe() // the first probe may find that it is rejected
	expectVerdict(t, events, known, activity.VerdictProbe)
	before := sample()
	for range 3 {
		probe()
		if after := sample(); !before.Same(after) {
			t.Errorf("a probe changes the ledger from %v to %v", before, after)
		}
		if reported {
			expectVerdict(t, events, known, activity.VerdictProbe)
		}
	}
}

func TestSample_aClientFromTheLoopbackInterfaceCounts(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		prepare(t, s)
		s.AddRule(t, "host all all all trust")
		known := &probes{}
		server := patient(NewServer(s.Directory, s.Port, known.add))
		if _, err := server.ShuttingDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://cnpg_metrics_exporter@127.0.0.1:%d/postgres?sslmode=disable", s.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		sampler := NewSampler(server)
		defer sampler.Close()
		rules := instances
		rules.Probe = known.has
		sample, err := sampler.Sample(t.Context(), rules)
		if err != nil || len(sample.Tally.InUse()) == 0 {
			t.Errorf("a session of the probe's own role does not count (%v)", err)
		}
	})
}

func TestAccepts_isNoClient(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		before := takeSample(t, server).Ledger
		for range 3 {
			if accepts, err := server.Accepts(t.Context()); !accepts || err != nil {
				t.Fatalf("accepts %t, %v", accepts, err)
			}
		}
		if sample := takeSample(t, server); len(sample.Tally.InUse()) != 0 || !before.Same(sample.Ledger) {
			t.Errorf("the ledger was %v and is %v; in use: %v", before, sample.Ledger, sample.Tally.InUse())
		}
	})
}

// unended is a connection on which only the startup packet arrives, as on a server that has not got to the end of the session yet.
type unended struct {
	net.Conn
	begun bool
}

func (u *unended) Write(packet []byte) (int, error) {
	if u.begun {
		return len(packet), nil
	}
	u.begun = true
	return u.Conn.Write(packet)
}

func TestStartup_isNoClientWhileItsSessionLasts(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		conn, err := net.Dial("unix", filepath.Join(s.Directory, ".s.PGSQL."+strconv.Itoa(int(s.Port))))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if code, err := probe.Startup(t.Context(), &unended{Conn: conn}); code != probe.SessionOpened || err != nil {
			t.Fatalf("answered by %q (%v), want a session", code, err)
		}
		if used := takeSample(t, server).Tally.InUse(); len(used) != 0 {
			t.Errorf("in use: %v", used)
		}
	})
}

func TestAccepts_tellsAServerThatStopsFromOneThatIsStopped(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := serverOf(s) // without the exporter's role the server refuses, and accepts others
		if accepts, err := server.Accepts(t.Context()); !accepts || err != nil {
			t.Fatalf("accepts %t, %v", accepts, err)
		}
		s.Connect(t, "postgres", "postgres") // a smart shutdown waits for it
		if err := s.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); ; {
			accepts, err := server.Accepts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !accepts {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the shutdown is not noticed")
			}
		}
		s.Stop(t)
		if accepts, err := server.Accepts(t.Context()); accepts || !errors.Is(err, ErrUnreachable) {
			t.Errorf("of a stopped server: %t, %v", accepts, err)
		}
	})
}
