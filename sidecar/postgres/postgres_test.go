package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var instances = activity.Rules{Instances: []string{"c-1", "c-2"}}

// prepare creates the roles that CloudNativePG creates, and an application's.
func prepare(t *testing.T, s *postgrestest.Server) *Server {
	t.Helper()
	s.Execute(t, "create role cnpg_metrics_exporter login in role pg_monitor", "create role streaming_replica login replication",
		"create role cnpg_pooler_pgbouncer login", "create role app login", "create database app owner app")
	return serverOf(s)
}

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// serverOf is the server for a sidecar that records no probes.
func serverOf(s *postgrestest.Server) *Server { return patient(strict(s)) }

// strict is one whose answers are waited for no longer than a sidecar does.
func strict(s *postgrestest.Server) *Server {
	return NewServer(s.Directory, s.Port, func(netip.AddrPort) func() { return func() {} })
}

// patient makes a sidecar wait for as long as a slow machine may take.
func patient(server *Server) *Server {
	server.probeWithin, server.answerWithin = patience, patience
	return server
}

func takeSample(t *testing.T, server *Server) Sample {
	t.Helper()
	sampler := NewSampler(server)
	defer sampler.Close()
	sample, err := sampler.Sample(t.Context(), instances)
	if err != nil {
		t.Fatal(err)
	}
	if sample.Began.IsZero() || sample.Ended.Before(sample.Began) {
		t.Errorf("the sample began at %s and ended at %s", sample.Began, sample.Ended)
	}
	return sample
}

func inUse(t *testing.T, server *Server) bool {
	t.Helper()
	return len(takeSample(t, server).Tally.InUse()) != 0
}

// Settings of a server or a database, which a user may have for other clients, keep nothing from the sidecar.
func TestServer_isAskedUnderAnySettings(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		takeSample(t, server)
		if _, err := server.Archiver(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := server.PasswordSet(t.Context(), "app"); err != nil {
			t.Error(err)
		}
		terminator, err := server.Terminator(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer terminator.Close()
		if _, err := terminator.Terminate(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if _, err := server.prepare(t.Context(), generous); err != nil {
			t.Error(err)
		}
	}, "client_encoding=latin1", "standard_conforming_strings=off")
}

// A trigger that records logins, as PostgreSQL's documentation has one, writes in the session that logs in.
func TestServer_logsInWhereLoginsAreRecorded(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 17, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		s.Execute(t, "create table logins (who text)",
			"create function record() returns event_trigger security definer language plpgsql as 'begin insert into public.logins values (session_user); end'",
			"create event trigger recorder on login execute function record()")
		takeSample(t, server)
	})
}

// Which sessions count, on a real server.
func TestSampler_whoCounts(t *testing.T) {
	t.Parallel()
	run := func(statements ...string) func(*testing.T, *pgx.Conn) {
		return func(t *testing.T, conn *pgx.Conn) {
			for _, statement := range statements {
				if _, err := conn.Exec(t.Context(), statement); err != nil && statement != "select 1/0" {
					t.Fatal(err)
				}
			}
		}
	}
	nothing := run()
	rows := []struct {
		rule, role, database, application string
		act                               func(*testing.T, *pgx.Conn)
		state                             string // empty: it does not count
	}{
		{"an idle session counts", "app", "app", "x", nothing, "idle"},
		{"a session idle in a transaction counts", "app", "app", "x", run("begin", "select 1"), "idle_in_transaction"},
		{"an aborted transaction counts", "app", "app", "x", run("begin", "select 1/0"), "idle_in_transaction_aborted"},
		{"a prepared statement idle in a transaction counts", "app", "app", "x", run("prepare p as select 1", "begin", "execute p"), "idle_in_transaction"},
		{"a session whose activity is not tracked counts", "postgres", "postgres", "x", run("set track_activities = off"), "disabled"},
		{"an administrator's psql counts", "postgres", "postgres", "psql", nothing, "idle"},
		{"a user who calls himself the instance manager counts", "app", "app", "cnpg-instance-manager", nothing, "idle"},
		{"a user who calls himself a standby counts", "app", "app", "c-2", nothing, "idle"},
		{"a backup tool counts", "postgres", "postgres", "barman_cloud_backup", nothing, "idle"},
		{"the instance manager does not count", "postgres", "app", "cnpg-instance-manager", nothing, ""},
		{"nor does it under the exporter's name, which it takes where the exporter has no role", "postgres", "app", "cnpg_metrics_exporter", nothing, ""},
		{"a user who takes the exporter's name counts", "app", "app", "cnpg_metrics_exporter", nothing, "idle"},
		{"the metrics exporter does not count", "cnpg_metrics_exporter", "app", "cnpg_metrics_exporter", nothing, ""},
		{"the slot replicator of a standby does not count", "streaming_replica", "postgres", "c-2", nothing, ""},
		{"a standby of another cluster counts", "streaming_replica", "postgres", "d-1", nothing, "idle"},
		{"the pooler's auth query does not count", "cnpg_pooler_pgbouncer", "postgres", "pgbouncer", nothing, ""},
	}
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		for _, row := range rows {
			t.Run(row.rule, func(t *testing.T) {
				conn := s.Connect(t, row.role, row.database, "application_name="+row.application)
				row.act(t, conn)
				sample := takeSample(t, server)
				if got, want := (len(sample.Tally.InUse()) != 0), row.state != ""; got != want {
					t.Errorf("counts: %t, want %t (%v)", got, want, sample.Tally.ByState())
				}
				if row.state != "" && sample.Tally.ByState()[row.state] != 1 {
					t.Errorf("states %v, want one %s", sample.Tally.ByState(), row.state)
				}
				if err := conn.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				awaitQuiet(t, server)
			})
		}
		t.Run("a replication client of somebody else counts, the cluster's own standby does not", func(t *testing.T) {
			for application, want := range map[string]bool{"c-2": false, "elsewhere": true} {
				conn := s.Connect(t, "streaming_replica", "postgres", "replication=database", "application_name="+application)
				if got := inUse(t, server); got != want {
					t.Errorf("walsender %s counts: %t, want %t", application, got, want)
				}
				_ = conn.Close(t.Context())
				awaitQuiet(t, server)
			}
		})
	})
}

// awaitQuiet waits until a terminated session is gone from the statistics: the server removes it only after the client has
// closed its socket.
func awaitQuiet(t *testing.T, server *Server) {
	t.Helper()
	for deadline := time.Now().Add(patience); inUse(t, server); {
		if time.Now().After(deadline) {
			t.Fatal("a closed session is still there")
		}
	}
}

// PostgreSQL 18 shows a client from its startup packet on, without a user. A port scanner, or the operator's own probe during
// authentication, is not a use of the database.
func TestSampler_aLoginThatIsNotCompleteDoesNotCount(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		frontend := pgproto3.NewFrontend(conn, conn)
		frontend.Send(&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "app", "database": "app"}})
		if err := frontend.Flush(); err != nil {
			t.Fatal(err)
		}
		if message, err := frontend.Receive(); err != nil {
			t.Fatal(err)
		} else if _, asked := message.(*pgproto3.AuthenticationSASL); !asked {
			t.Fatalf("the server asks for no password: %T", message)
		}
		if sample := takeSample(t, server); len(sample.Tally.InUse()) != 0 {
			t.Errorf("it counts: %v", sample.Tally.ByState())
		}
	})
}

func TestServer_fallsBackWithoutTheExportersRole(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := serverOf(s)
		if inUse(t, server) {
			t.Error("our own session counts")
		}
	})
}

func TestSampler_whatCannotBeSeenCounts(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		s.Execute(t, "revoke pg_monitor from cnpg_metrics_exporter")
		s.Connect(t, "streaming_replica", "postgres", "application_name=c-2")
		if !inUse(t, server) {
			t.Error("a session that cannot be judged does not count")
		}
	})
}

func TestSampler_aFrozenServerIsAnError(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		sampler := NewSampler(server)
		defer sampler.Close()
		if _, err := sampler.Sample(t.Context(), instances); err != nil {
			t.Fatal(err)
		}
		server.probeWithin, server.answerWithin = probeTimeout, sampleTimeout
		if err := s.Freeze(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Thaw() }()
		if _, err := sampler.Sample(t.Context(), instances); err == nil {
			t.Error("a frozen server was sampled")
		}
		if sampler.held.current() != nil {
			t.Error("the session is kept after an error")
		}
		if _, err := server.ShuttingDown(t.Context()); !errors.Is(err, ErrUnreachable) || !errors.Is(err, ErrTimeout) {
			t.Errorf("asking a frozen server: %v, want ErrUnreachable and ErrTimeout", err)
		}
	})
}

// A smart shutdown is noticed, and the server stops once our sessions are closed.
func TestShuttingDown_isNoticedAndDelaysNothing(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		if refusing, err := server.ShuttingDown(t.Context()); refusing || err != nil {
			t.Fatalf("before the shutdown: %t, %v", refusing, err)
		}
		sampler := NewSampler(server)
		if _, err := sampler.Sample(t.Context(), instances); err != nil {
			t.Fatal(err)
		}
		if err := s.Signal(syscall.SIGTERM); err != nil { // smart
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); ; {
			refusing, err := server.ShuttingDown(t.Context())
			if err != nil {
				t.Fatalf("during the shutdown: %v", err)
			}
			if refusing {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the shutdown is not noticed")
			}
		}
		select {
		case <-s.Ended():
			t.Fatal("the server did not wait for our session")
		default:
		}
		sampler.Close()
		select {
		case <-s.Ended():
		case <-time.After(patience):
			t.Error("the server still waits after our session was closed")
		}
	})
}

func TestListener_receivesNotifications(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		kinds, failures := make(chan Kind, 8), make(chan error, 8)
		notify := func(n Notification) { kinds <- n.Kind }
		listener := NewListener(server, "app", notify, func(err error) { failures <- err })
		ctx, cancel := contextOf(t)
		done := make(chan struct{})
		go func() { defer close(done); listener.Run(ctx) }()
		if got := <-kinds; got != KindBacklog || !listener.Connected() {
			t.Errorf("first %q, connected %t", got, listener.Connected())
		}
		app := s.Connect(t, "app", "app")
		var listening int
		const sessions = "select count(*) from pg_stat_activity where datname = 'app' and application_name = '" + contract.ListeningApplicationName + "'"
		if err := app.QueryRow(t.Context(), sessions).Scan(&listening); err != nil || listening != 1 {
			t.Errorf("%d sessions are seen to listen: %v", listening, err)
		}
		for payload, want := range map[string]Kind{"": KindActivity, "activity": KindActivity, "keep-awake 2h": KindKeepAwake, "release": KindRelease, "hibernate": KindHibernate, "go to sleep": KindMalformed} {
			if _, err := app.Exec(t.Context(), "select pg_notify('scale_to_zero', $1)", payload); err != nil {
				t.Fatal(err)
			}
			if got := <-kinds; got != want {
				t.Errorf("payload %q is %q, want %q", payload, got, want)
			}
		}
		_ = app.Close(t.Context())
		cancel()
		<-done
		awaitQuiet(t, server)

		s.Execute(t, "revoke connect on database app from public")
		ctx, cancel = contextOf(t)
		done = make(chan struct{})
		go func() { defer close(done); listener.Run(ctx) }()
		var refused *RefusedError
		if err := <-failures; !errors.As(err, &refused) || refused.Code != "42501" {
			t.Errorf("without the right to connect: %v, want a refusal", err)
		}
		cancel()
		<-done
	})
}

func TestShuttingDown_ofAServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	server := NewServer(os.TempDir(), 1, func(netip.AddrPort) func() { return func() {} })
	if _, err := server.ShuttingDown(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
	if _, err := NewSampler(server).Sample(t.Context(), instances); err == nil {
		t.Error("no server was sampled")
	}
}

// Where pg_hba.conf rejects connections without TLS, the check logs in over the socket and leaves only one line in the log.
func TestShuttingDown_logsInWherePlaintextIsRejected(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		s.AddRule(t, "hostnossl all all all reject")
		for range 3 {
			if refusing, err := server.ShuttingDown(t.Context()); refusing || err != nil {
				t.Fatalf("a serving server: %t, %v", refusing, err)
			}
		}
		if rejections := strings.Count(s.Log(), "pg_hba.conf rejects"); rejections != 1 {
			t.Errorf("%d rejections are in the log, want 1", rejections)
		}
	})
}

// A session closed by another goroutine during a statement ends at once, and no cancel request follows.
func TestCloseNow_whileAStatementRuns(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		opened, err := server.connect(t.Context(), maintenanceDatabase)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := opened.conn.Exec(context.Background(), "select pg_sleep(60)")
			ended <- err
		}()
		admin := s.Connect(t, "postgres", "postgres")
		running := func() (count int) {
			const query = "select count(*) from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active'"
			if err := admin.QueryRow(t.Context(), query).Scan(&count); err != nil {
				t.Fatal(err)
			}
			return count
		}
		for running() == 0 {
			runtime.Gosched()
		}
		opened.closeNow()
		opened.closeNow() // closing twice is harmless
		if err := <-ended; err == nil {
			t.Error("the statement ended without an error")
		}
		for running() != 0 { // client_connection_check_interval ends it
			runtime.Gosched()
		}
	})
}

func TestHolder_keepsNoSessionThatCameTooLate(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		var held holder
		ctx, done := held.use(t.Context())
		defer done()
		opened, err := server.connect(ctx, maintenanceDatabase)
		if err != nil {
			t.Fatal(err)
		}
		held.close()
		if err := held.keep(ctx, opened); !errors.Is(err, errClosed) || held.current() != nil {
			t.Errorf("kept after the close: %v", err)
		}
	})
}
