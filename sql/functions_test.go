package sql_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

// patience bounds every wait; a passing test never reaches it.
const patience = 2 * time.Minute

// prepare creates the roles that CloudNativePG creates, an application's with its database, and one without any right.
func prepare(t *testing.T, s *postgrestest.Server) {
	t.Helper()
	s.Execute(t, "create role cnpg_metrics_exporter login in role pg_monitor", "create role streaming_replica login replication",
		"create role cnpg_pooler_pgbouncer login", "create role guest login", "create role app login", "create database app owner app")
}

// run runs a file with psql twice: the second time must succeed and change nothing.
func run(t *testing.T, s *postgrestest.Server, role, file string) {
	t.Helper()
	for range 2 {
		if out, err := s.Psql(t, role, "app", file); err != nil {
			t.Fatalf("%s: %v: %s", file, err, out)
		}
	}
}

func execute(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func value[T any](t *testing.T, conn *pgx.Conn, query string) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// listen opens a session that listens like the sidecar.
func listen(t *testing.T, s *postgrestest.Server) *pgx.Conn {
	t.Helper()
	listener := s.Connect(t, "cnpg_metrics_exporter", "app", "application_name=cnpg-i-scale-to-zero")
	execute(t, listener, "listen scale_to_zero", "set application_name = 'cnpg-i-scale-to-zero listening'")
	return listener
}

// received returns the payloads since the previous call. It sends a marker, which is delivered last.
func received(t *testing.T, listener *pgx.Conn) string {
	t.Helper()
	execute(t, listener, "notify scale_to_zero, 'marker'")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var payloads []string
	for {
		n, err := listener.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n.Payload == "marker" {
			return strings.Join(payloads, ", ")
		}
		payloads = append(payloads, n.Payload)
	}
}

// refused checks an error's SQLSTATE and parts of its message.
func refused(t *testing.T, err error, state string, parts ...string) {
	t.Helper()
	var said *pgconn.PgError
	if !errors.As(err, &said) || said.Code != state {
		t.Errorf("SQLSTATE %s is expected, not %v", state, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(said.Message, part) {
			t.Errorf("%q does not say %q", said.Message, part)
		}
	}
}

// objects counts what is in or about the schema.
const objects = `select (select count(*) from pg_proc where pronamespace = to_regnamespace('scale_to_zero'))
	+ (select count(*) from pg_namespace where nspname = 'scale_to_zero') + (select count(*) from pg_event_trigger)`

func TestFunctions_notifyAndReport(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		prepare(t, s)
		if s.Major < 17 {
			t.Run("there is no login trigger yet", func(t *testing.T) { tooOld(t, s) })
		}
		run(t, s, "app", "functions.sql")
		guest := s.Connect(t, "guest", "app")
		t.Run("what nobody would hear", func(t *testing.T) { unheard(t, s, guest) })
		listener := listen(t, s)
		t.Run("what is sent", func(t *testing.T) { sent(t, listener, guest) })
		t.Run("what is refused", func(t *testing.T) { notSent(t, listener, guest) })
		t.Run("status", func(t *testing.T) { status(t, s, guest) })
		t.Run("a search path of the caller's changes nothing", func(t *testing.T) {
			owner := s.Connect(t, "app", "app")
			execute(t, owner, "create schema trap", "create function trap.pg_notify(text, text) returns void language plpgsql as $$ begin raise 'trapped'; end $$",
				"create function trap.pg_is_in_recovery() returns boolean language sql as 'select true'",
				"set search_path = trap, pg_catalog", "select scale_to_zero.touch()", "drop schema trap cascade")
			if got := received(t, listener); got != "activity" {
				t.Errorf("received %q", got)
			}
		})
		t.Run("rights stay and older functions are replaced", func(t *testing.T) {
			owner := s.Connect(t, "app", "app")
			execute(t, owner, "revoke execute on function scale_to_zero.hibernate() from public", "revoke usage on schema scale_to_zero from public", "grant usage on schema scale_to_zero to guest",
				"create or replace function scale_to_zero.touch() returns void language sql as 'select'")
			run(t, s, "app", "functions.sql")
			_, err := guest.Exec(t.Context(), "select scale_to_zero.hibernate()")
			refused(t, err, "42501")
			if value[bool](t, guest, "select has_schema_privilege('streaming_replica', 'scale_to_zero', 'usage')") {
				t.Error("a right that was revoked is back")
			}
			execute(t, guest, "select scale_to_zero.touch()")
			if got := received(t, listener); got != "activity" {
				t.Errorf("received %q", got)
			}
		})
		t.Run("uninstall", func(t *testing.T) {
			owner := s.Connect(t, "app", "app")
			execute(t, owner, "create table scale_to_zero.mine()")
			out, err := s.Psql(t, "app", "app", "uninstall.sql")
			if err == nil || !strings.Contains(out, "mine") || value[int](t, owner, objects) != 7 {
				t.Errorf("a schema with a table of the owner's: %v, %s", err, out)
			}
			execute(t, owner, "drop table scale_to_zero.mine")
			run(t, s, "app", "uninstall.sql")
			if n := value[int](t, owner, objects); n != 0 {
				t.Errorf("%d objects are left", n)
			}
		})
		t.Run("as CloudNativePG runs it after initdb", func(t *testing.T) {
			file, err := os.ReadFile("functions.sql")
			if err != nil {
				t.Fatal(err)
			}
			execute(t, s.Connect(t, "postgres", "app"), string(file))
			execute(t, guest, "select scale_to_zero.touch()")
		})
	})
}

func sent(t *testing.T, listener, guest *pgx.Conn) {
	for _, row := range []struct{ statement, payload string }{
		{"select scale_to_zero.touch()", "activity"},
		{"select scale_to_zero.keep_awake('2 hours')", "keep-awake 7200s"},
		{"select scale_to_zero.keep_awake('7 days')", "keep-awake 604800s"},
		{"select scale_to_zero.keep_awake('0.2 seconds')", "keep-awake 1s"},
		{"select scale_to_zero.keep_awake('1 day -23 hours')", "keep-awake 3600s"},
		{"set intervalstyle = sql_standard; select scale_to_zero.keep_awake(duration => '90 minutes')", "keep-awake 5400s"},
		{"select scale_to_zero.release()", "release"},
		{"select scale_to_zero.hibernate()", "hibernate"},
		{"begin; select scale_to_zero.hibernate(); rollback", ""},
		{"begin read only; select scale_to_zero.touch(); select scale_to_zero.touch(); commit", "activity"},
	} {
		execute(t, guest, row.statement)
		if got := received(t, listener); got != row.payload {
			t.Errorf("%s: received %q, want %q", row.statement, got, row.payload)
		}
		if seconds, of := strings.CutPrefix(row.payload, "keep-awake "); of {
			if _, err := time.ParseDuration(seconds); err != nil {
				t.Errorf("%s: not a duration of Go's: %v", row.statement, err)
			}
		}
	}
}

// unheard checks that a request fails until the sidecar listens, and that an earlier failure in the same transaction changes nothing.
func unheard(t *testing.T, s *postgrestest.Server, guest *pgx.Conn) {
	s.Connect(t, "cnpg_metrics_exporter", "app", "application_name=cnpg-i-scale-to-zero") // which has yet to listen
	s.Connect(t, "guest", "app", "application_name='cnpg-i-scale-to-zero listening'")
	listening := s.Connect(t, "cnpg_metrics_exporter", "postgres", "application_name='cnpg-i-scale-to-zero listening'")
	for _, call := range []string{"keep_awake('1 hour')", "release()", "hibernate()"} {
		_, err := guest.Exec(t.Context(), "select scale_to_zero."+call)
		refused(t, err, "55000", `does not listen in database "app"`)
	}
	execute(t, guest, "select scale_to_zero.touch()")
	_ = listening.Close(t.Context())

	execute(t, guest, "begin", "savepoint before")
	_, err := guest.Exec(t.Context(), "select scale_to_zero.keep_awake('1 hour')")
	refused(t, err, "55000")
	listener := listen(t, s)
	execute(t, guest, "rollback to before", "select scale_to_zero.keep_awake('1 hour')", "commit")
	if got := received(t, listener); got != "keep-awake 3600s" {
		t.Errorf("received %q", got)
	}
	_ = listener.Close(t.Context())
}

func notSent(t *testing.T, listener, guest *pgx.Conn) {
	execute(t, guest, "reset intervalstyle")
	const allowed = "must be more than 0 and at most 7 days"
	for argument, named := range map[string]string{
		"null": "NULL", "'0'": "'00:00:00'", "'-1 hour'": "'-01:00:00'", "'1 month'": "'1 mon'", "'7 days 0.1 seconds'": "'7 days 00:00:00.1'",
	} {
		_, err := guest.Exec(t.Context(), "select scale_to_zero.keep_awake("+argument+")")
		refused(t, err, "22023", named, allowed)
	}
	if value[int](t, guest, "select current_setting('server_version_num')::int") >= 170000 {
		for _, argument := range []string{"infinity", "-infinity"} {
			_, err := guest.Exec(t.Context(), "select scale_to_zero.keep_awake('"+argument+"')")
			refused(t, err, "22023", "'"+argument+"'", allowed)
		}
	}
	if got := received(t, listener); got != "" {
		t.Errorf("received %q", got)
	}
}

// seen is a row of status().
type seen struct {
	InRecovery, SidecarConnected bool
	QueueUsage                   float64
	Sessions                     int64
	SeesAll                      bool
}

func status(t *testing.T, s *postgrestest.Server, conn *pgx.Conn) {
	status := func(conn *pgx.Conn) seen {
		t.Helper()
		rows, _ := conn.Query(t.Context(), "select * from scale_to_zero.status()")
		row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[seen])
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	monitor := s.Connect(t, "cnpg_metrics_exporter", "app", "application_name=cnpg_metrics_exporter")
	becomes := func(rule string, conn *pgx.Conn, want seen) { // the server shows a session for a moment after psql has ended
		t.Helper()
		got := status(conn)
		for deadline := time.Now().Add(patience); got != want && time.Now().Before(deadline); got = status(conn) {
			continue
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", rule, got, want)
		}
	}
	// The guest sees the monitor, the monitor sees the guest, and neither sees itself or the listener.
	becomes("without rights", conn, seen{SidecarConnected: true, Sessions: 1})
	becomes("with pg_monitor", monitor, seen{SidecarConnected: true, Sessions: 1, SeesAll: true})
	// In another database no sidecar listens, and a guest's application_name is not accepted as one.
	s.Execute(t, "create database other")
	execute(t, s.Connect(t, "postgres", "other"), "create schema scale_to_zero")
	if out, err := s.Psql(t, "postgres", "other", "functions.sql"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.Connect(t, "guest", "other", "application_name='cnpg-i-scale-to-zero listening'")
	other := s.Connect(t, "postgres", "other")
	if status(other).SidecarConnected {
		t.Error("a guest who calls himself the sidecar is believed")
	}
}

// tooOld checks for one clear error, and that nothing is left behind that the uninstall would miss.
func tooOld(t *testing.T, s *postgrestest.Server) {
	out, err := s.Psql(t, "postgres", "app", "login-trigger.sql")
	if want := fmt.Sprintf("need PostgreSQL 17 or later, and this is %d", s.Major); err == nil || strings.Count(out, "ERROR") != 1 || !strings.Contains(out, want) {
		t.Errorf("%v: %s", err, out)
	}
	if n := value[int](t, s.Connect(t, "postgres", "app"), objects); n != 0 {
		t.Errorf("%d objects are left", n)
	}
	run(t, s, "postgres", "uninstall.sql")
}

func TestFunctions_onAStandby(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		prepare(t, s)
		run(t, s, "app", "functions.sql")
		conn := s.Standby(t).Connect(t, "guest", "app")
		for _, call := range []string{"touch()", "keep_awake('1 hour')", "release()", "hibernate()"} {
			_, err := conn.Exec(t.Context(), "select scale_to_zero."+call)
			refused(t, err, "25006", "impossible on a standby", "primary")
		}
		if !value[bool](t, conn, "select in_recovery from scale_to_zero.status()") {
			t.Error("status() does not say that this is a standby")
		}
	})
}
