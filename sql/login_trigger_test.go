package sql_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

// off disables event triggers, for a login in spite of a broken trigger.
const off = "options='-c event_triggers=off'"

// triggered runs the test on servers with the login trigger and the smallest possible notification queue.
func triggered(t *testing.T, test func(*testing.T, *postgrestest.Server)) {
	t.Helper()
	t.Parallel()
	postgrestest.From(t, 17, func(t *testing.T, s *postgrestest.Server) {
		prepare(t, s)
		run(t, s, "postgres", "login-trigger.sql")
		test(t, s)
	}, "max_notify_queue_pages=64", "cluster_name='c'")
}

// login opens a session and closes it at once.
func login(t *testing.T, s *postgrestest.Server, role, database string, settings ...string) error {
	t.Helper()
	conn, err := s.Login(t, role, database, settings...)
	if err != nil {
		return err
	}
	return conn.Close(t.Context())
}

func mustLogin(t *testing.T, s *postgrestest.Server, role, database string, settings ...string) {
	t.Helper()
	if err := login(t, s, role, database, settings...); err != nil {
		t.Errorf("%s cannot log in: %v", role, err)
	}
}

func TestLoginTrigger_whoseLoginIsNotified(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		if out, err := s.Psql(t, "postgres", "postgres", "login-trigger.sql"); err != nil { // for the rows in that database
			t.Fatalf("%v: %s", err, out)
		}
		s.Execute(t, "alter role postgres password 'p'", "alter role cnpg_metrics_exporter password 'p'")
		listeners := map[string]*pgx.Conn{"app": listen(t, s), "postgres": s.Connect(t, "cnpg_metrics_exporter", "postgres", "application_name=cnpg-i-scale-to-zero")}
		execute(t, listeners["postgres"], "listen scale_to_zero")
		const tcp = "host=127.0.0.1 password=p"
		rows := []struct {
			role, database, application, settings string
			notified                              bool
		}{
			{role: "app", database: "app", application: "x", notified: true},
			{role: "guest", database: "app", notified: true},
			{role: "postgres", database: "app", application: "psql", notified: true},
			{role: "postgres", database: "app", application: "barman_cloud_backup", notified: true},
			{role: "postgres", database: "app", application: "cnpg-instance-manager", settings: tcp, notified: true},
			{role: "cnpg_metrics_exporter", database: "app", application: "cnpg_metrics_exporter", settings: tcp, notified: true},
			{role: "cnpg_metrics_exporter", database: "app", application: "x", notified: true},
			{role: "streaming_replica", database: "postgres", application: "d-1", notified: true},
			{role: "streaming_replica", database: "postgres", application: "c-1-other", notified: true},
			{role: "streaming_replica", database: "app", application: "c-2", notified: true},
			{role: "streaming_replica", database: "app", application: "subscription", settings: "replication=database", notified: true},
			{role: "cnpg_pooler_pgbouncer", database: "app", application: "pgbouncer", notified: true},
			{role: "postgres", database: "app", application: "cnpg-instance-manager"},
			{role: "postgres", database: "postgres", application: "cnpg-instance-manager"},
			{role: "postgres", database: "postgres", application: "pg_isready"},
			{role: "postgres", database: "app", application: "cnpg_metrics_exporter"},
			{role: "postgres", database: "app", application: "cnpg-i-scale-to-zero"},
			{role: "cnpg_metrics_exporter", database: "app", application: "cnpg_metrics_exporter"},
			{role: "cnpg_metrics_exporter", database: "app", application: "cnpg-i-scale-to-zero"},
			{role: "streaming_replica", database: "postgres", application: "c-2"},
			{role: "streaming_replica", database: "postgres", application: "c-12-join"},
			{role: "cnpg_pooler_pgbouncer", database: "postgres", application: "pgbouncer"},
		}
		for _, name := range []string{"cnpg-instance-manager", "cnpg_metrics_exporter", "pg_isready", "cnpg-i-scale-to-zero", "c-1"} {
			rows = append(rows, struct { // a user who only uses that name
				role, database, application, settings string
				notified                              bool
			}{role: "app", database: "app", application: name, notified: true})
		}
		for _, row := range rows {
			mustLogin(t, s, row.role, row.database, fmt.Sprintf("application_name='%s'", row.application), row.settings)
			if got, want := received(t, listeners[row.database]), map[bool]string{true: "activity"}[row.notified]; got != want {
				t.Errorf("%+v: received %q, want %q", row, got, want)
			}
		}
	})
}

// Settings of a role or a database must neither suppress the notification nor make the trigger fail the login.
func TestLoginTrigger_settingsFailNoLogin(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		listener := listen(t, s)
		for _, target := range []string{"role app", "database app"} {
			for _, setting := range []string{
				"statement_timeout = '1ms'", "lock_timeout = '1ms'", "idle_in_transaction_session_timeout = '1ms'",
				"default_transaction_read_only = on", "default_transaction_isolation = serializable", "synchronous_commit = remote_apply",
				"search_path = public", "client_encoding = 'LATIN1'", "check_function_bodies = off", "plpgsql.extra_errors = 'all'", "track_activities = off",
			} {
				s.Execute(t, "alter "+target+" set "+setting)
				mustLogin(t, s, "app", "app")
				if got := received(t, listener); got != "activity" {
					t.Errorf("%s set %s: received %q", target, setting, got)
				}
				s.Execute(t, "alter "+target+" reset all")
			}
		}
	})
}

// Unlike statement_timeout, transaction_timeout applies in a login trigger. Another trigger that runs later in the same
// transaction takes longer than it allows.
func TestLoginTrigger_transactionTimeoutEndsNoLogin(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		listener := listen(t, s)
		execute(t, s.Connect(t, "postgres", "app"), "create function slow() returns event_trigger language plpgsql as $$ begin perform pg_sleep(3.2); end $$",
			"create event trigger zz on login execute function slow()", "alter role guest set transaction_timeout = '3s'", "alter role guest set statement_timeout = '1s'")
		_ = received(t, listener)
		mustLogin(t, s, "guest", "app")
		if got := received(t, listener); got != "activity" {
			t.Errorf("received %q", got)
		}
		execute(t, s.Connect(t, "postgres", "app", off), "alter event trigger scale_to_zero_login disable")
		if err := login(t, s, "guest", "app"); err == nil || !strings.Contains(err.Error(), "transaction timeout") {
			t.Errorf("without the first statement of the trigger: %v", err)
		}
	})
}

// A database owner who had created the function before must not own code that runs in everybody's name.
func TestLoginTrigger_belongsToTheSuperuser(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		run(t, s, "postgres", "uninstall.sql")
		run(t, s, "app", "functions.sql")
		owner, listener := s.Connect(t, "app", "app"), listen(t, s)
		execute(t, owner, "create function scale_to_zero.notify_login() returns event_trigger language plpgsql as 'begin end'")
		run(t, s, "postgres", "login-trigger.sql")
		_, err := owner.Exec(t.Context(), "create or replace function scale_to_zero.notify_login() returns event_trigger language plpgsql as 'begin end'")
		refused(t, err, "42501", "owner")
		if out, err := s.Psql(t, "app", "app", "login-trigger.sql"); err == nil {
			t.Errorf("an owner without rights replaced it: %s", out)
		}
		if out, err := s.Psql(t, "app", "app", "uninstall.sql"); err == nil || !strings.Contains(out, "must be owner of event trigger") {
			t.Errorf("an owner without rights removed it: %v: %s", err, out)
		}
		_ = received(t, listener)
		mustLogin(t, s, "guest", "app")
		if got := received(t, listener); got != "activity" {
			t.Errorf("received %q", got)
		}
		run(t, s, "postgres", "uninstall.sql")
		if n := value[int](t, owner, objects); n != 0 {
			t.Errorf("%d objects are left", n)
		}
		mustLogin(t, s, "app", "app")
	})
}

// The commit of a NOTIFY fails when the queue is full, outside of any exception handler.
func TestLoginTrigger_aFullQueueFailsNoLogin(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		stalled, writer := listen(t, s), s.Connect(t, "app", "app")
		execute(t, stalled, "begin", "select 1")
		const fill = "select count(pg_notify('other', n || repeat('x', 7900))) from generate_series(1, %d) n"
		usage := func() float64 { return value[float64](t, writer, "select pg_notification_queue_usage()") }
		before := usage()
		mustLogin(t, s, "guest", "app")
		for usage() <= 0.1 {
			execute(t, writer, fmt.Sprintf(fill, 1))
		}
		above := usage()
		mustLogin(t, s, "guest", "app")
		if after := usage(); after != above {
			t.Errorf("with %.3f of the queue in use (%.3f at first) a login changed it to %.3f", above, before, after)
		}
		for {
			if _, err := writer.Exec(t.Context(), fmt.Sprintf(fill, 1)); err != nil {
				refused(t, err, "54000", "too many notifications")
				break
			}
		}
		mustLogin(t, s, "guest", "app")
		// A trigger without these precautions, and the way to log in nevertheless.
		execute(t, s.Connect(t, "postgres", "app"), "create function simple() returns event_trigger language plpgsql as $$ begin perform pg_notify('scale_to_zero', repeat('x', 7900)); exception when others then return; end $$",
			"create event trigger simple on login execute function simple()")
		if err := login(t, s, "postgres", "app"); err == nil || !strings.Contains(err.Error(), "too many notifications") {
			t.Errorf("the simple trigger let a login pass: %v", err)
		}
		mustLogin(t, s, "postgres", "app", off)
		execute(t, s.Connect(t, "postgres", "app", off), "drop event trigger simple")
		mustLogin(t, s, "postgres", "app")
		execute(t, stalled, "commit") // it reads again
		for usage() > 0.1 {
			continue
		}
		_ = received(t, stalled)
		mustLogin(t, s, "guest", "app")
		if got := received(t, stalled); got != "activity" {
			t.Errorf("after the queue was emptied: received %q", got)
		}
	})
}

// The commit of a NOTIFY holds an instance-wide lock, for as long as a synchronous standby is away.
func TestLoginTrigger_aStuckCommitHoldsUpNoLogin(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		stuck, watcher := s.Connect(t, "app", "app"), s.Connect(t, "postgres", "postgres")
		execute(t, s.Connect(t, "postgres", "app"), "create table logins()", "grant insert on logins to app",
			"create function record() returns event_trigger language plpgsql as $$ begin if session_user = 'app' then insert into logins default values; end if; end $$",
			"create event trigger zz on login execute function record()")
		execute(t, watcher, "alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
		for value[string](t, stuck, "show synchronous_standby_names") == "" {
			continue
		}
		execute(t, watcher, "checkpoint") // the checkpointer has read the setting by then, from which on commits wait
		mustLogin(t, s, "guest", "app")   // its own commit does not wait,
		mustLogin(t, s, "app", "app")     // not even after a write
		execute(t, stuck, "begin", "insert into logins default values", "notify scale_to_zero")
		done := make(chan error, 1)
		go func() {
			_, err := stuck.Exec(t.Context(), "commit")
			done <- err
		}()
		for !value[bool](t, watcher, "select exists (select from pg_stat_activity where wait_event = 'SyncRep')") {
			if len(done) != 0 {
				t.Fatalf("the commit was not stuck: %v", <-done)
			}
		}
		for range 3 {
			mustLogin(t, s, "guest", "app")
		}
		select {
		case err := <-done:
			t.Errorf("the commit was not stuck: %v", err)
		default:
		}
		execute(t, watcher, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Many concurrent logins next to other notifiers: each succeeds, and the last one is notified.
func TestLoginTrigger_manyLogins(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		listener := listen(t, s)
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for range 25 {
					conn, err := s.Login(t, "guest", "app", "application_name=x")
					if err != nil {
						t.Errorf("cannot log in: %v", err)
						return
					}
					if _, err := conn.Exec(t.Context(), "notify other"); err != nil {
						t.Error(err)
					}
					_ = conn.Close(t.Context())
				}
			})
		}
		clients.Wait()
		if received(t, listener) == "" {
			t.Error("no login was notified")
		}
	})
}

// A login that finds another's trigger running leaves the notification to it; a session that holds that lock for longer counts
// as in use itself.
func TestLoginTrigger_waitsForNobody(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		listener := listen(t, s)
		execute(t, s.Connect(t, "app", "app"), "begin", "select pg_advisory_xact_lock(hashtextextended('scale_to_zero.notify_login', 0))")
		_ = received(t, listener)
		mustLogin(t, s, "guest", "app")
		if got := received(t, listener); got != "" {
			t.Errorf("received %q", got)
		}
	})
}

// An error inside the trigger costs the notification, not the login.
func TestLoginTrigger_catchesItsErrors(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		listener := listen(t, s)
		execute(t, s.Connect(t, "postgres", "app"), "revoke execute on function pg_notify(text, text) from public")
		_ = received(t, listener)
		mustLogin(t, s, "guest", "app")
		if got := received(t, listener); got != "" {
			t.Errorf("received %q", got)
		}
	})
}

// The trigger also fires on standbys, where it does nothing. After the trigger is dropped, PostgreSQL keeps a flag of the
// database until the next login on the primary; a standby must cope with it.
func TestLoginTrigger_onAStandby(t *testing.T) {
	triggered(t, func(t *testing.T, s *postgrestest.Server) {
		standby := s.Standby(t)
		mustLogin(t, standby, "guest", "app")
		if out, err := s.Psql(t, "postgres", "app", "uninstall.sql"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		caughtUp(t, s, standby)
		if !value[bool](t, standby.Connect(t, "guest", "postgres"), "select dathasloginevt from pg_database where datname = 'app'") {
			t.Error("the mark that this test is about is gone")
		}
		mustLogin(t, standby, "guest", "app")
	})
}

// caughtUp waits until the standby has replayed the primary's WAL.
func caughtUp(t *testing.T, s, standby *postgrestest.Server) {
	t.Helper()
	at := value[string](t, s.Connect(t, "postgres", "postgres"), "select pg_current_wal_insert_lsn()::text")
	replica := standby.Connect(t, "postgres", "postgres")
	for !value[bool](t, replica, "select pg_last_wal_replay_lsn() >= '"+at+"'") {
		continue
	}
}
