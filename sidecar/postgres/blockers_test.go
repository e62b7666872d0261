package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// await polls until the condition holds.
func await(t *testing.T, server *Server, rules activity.Rules, what string, holds func(Sample) bool) Sample {
	t.Helper()
	sampler := NewSampler(server)
	defer sampler.Close()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		sample, err := sampler.Sample(t.Context(), rules)
		if err != nil {
			t.Fatal(err)
		}
		if holds(sample) {
			return sample
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not seen; blockers %v, in use %v", what, sample.Blockers, sample.Tally.InUse())
		}
	}
}

// awaitTrue polls until the query returns true.
func awaitTrue(t *testing.T, conn *pgx.Conn, query string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		var is bool
		if err := conn.QueryRow(t.Context(), query).Scan(&is); err != nil {
			t.Fatal(err)
		}
		if is {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never true: %s", query)
		}
	}
}

// Each of the server's reasons against a shutdown, on a real server.
func TestSampler_findsBlockers(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		s.Execute(t, "alter role app replication", "alter system set max_prepared_transactions = 5")
		admin := s.Connect(t, "postgres", "app")
		run := func(statement string) {
			t.Helper()
			if _, err := admin.Exec(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		blocked := func(reason idle.Reason) func(Sample) bool {
			return func(sample Sample) bool { return slices.Contains(sample.Blockers, reason) }
		}
		inUse := func(reason idle.Reason) func(Sample) bool {
			return func(sample Sample) bool { return slices.Contains(sample.Tally.InUse(), reason) }
		}
		t.Run("an advisory lock blocks, also of a session that rests", func(t *testing.T) {
			run("select pg_advisory_lock(1)")
			sample := await(t, server, activity.Rules{Queries: true}, "lock", blocked(idle.ReasonAdvisoryLock))
			if len(sample.Tally.InUse()) != 0 {
				t.Errorf("a resting session is in use: %v", sample.Tally.InUse())
			}
			run("select pg_advisory_unlock(1)")
			await(t, server, activity.Rules{}, "unlock", func(sample Sample) bool { return len(sample.Blockers) == 0 })
		})
		t.Run("a logical slot that is read blocks, one that is not read is only counted", func(t *testing.T) {
			run("select pg_create_logical_replication_slot('s', 'pgoutput')")
			sample := await(t, server, activity.Rules{}, "slot", func(sample Sample) bool { return sample.InactiveSlots == 1 })
			if len(sample.Blockers) != 0 {
				t.Errorf("an inactive slot blocks: %v", sample.Blockers)
			}
			reader := s.Connect(t, "app", "app", "replication=database", "application_name=subscriber")
			run("create publication p")
			stream := reader.PgConn().Exec(t.Context(), "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')")
			go func() { stream.NextResult() }()
			await(t, server, activity.Rules{}, "active slot", blocked(idle.ReasonLogicalSlot))
			await(t, server, activity.Rules{}, "walsender", inUse(idle.ReasonReplicationClient))
			_ = reader.PgConn().Conn().Close()
			await(t, server, activity.Rules{}, "end", func(sample Sample) bool { return sample.InactiveSlots == 1 && len(sample.Blockers) == 0 })
			run("select pg_drop_replication_slot('s')")
		})
		t.Run("an enabled subscription blocks while its publisher is away, a disabled one does not", func(t *testing.T) {
			subscriber := s.Connect(t, "postgres", "app")
			for _, statement := range []string{
				"create subscription away connection 'host=127.0.0.1 port=1 dbname=x' publication p with (connect = false)",
				"alter subscription away set (slot_name = 'away')", "alter subscription away enable",
			} {
				if _, err := subscriber.Exec(t.Context(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
			// Between two tries no worker runs, in many more samples than not.
			await(t, server, activity.Rules{}, "no worker", func(sample Sample) bool {
				var workers int
				if err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_subscription where pid is not null").Scan(&workers); err != nil {
					t.Fatal(err)
				}
				return workers == 0 && blocked(idle.ReasonSubscription)(sample)
			})
			if _, err := subscriber.Exec(t.Context(), "alter subscription away disable"); err != nil {
				t.Fatal(err)
			}
			await(t, server, activity.Rules{}, "disabled", func(sample Sample) bool { return !blocked(idle.ReasonSubscription)(sample) })
			for _, statement := range []string{"alter subscription away set (slot_name = none)", "drop subscription away"} {
				if _, err := subscriber.Exec(t.Context(), statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
		})
		t.Run("a command in progress blocks", func(t *testing.T) {
			run("create table big as select g, md5(g::text) from generate_series(1, 200000) g")
			worker := s.Connect(t, "postgres", "app")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for ctx.Err() == nil {
					_, _ = worker.Exec(ctx, "create index on big (md5)")
					_, _ = worker.Exec(ctx, "drop index big_md5_idx")
				}
			}()
			await(t, server, activity.Rules{}, "progress", blocked(idle.ReasonProgress))
		})
	})
}

// Without the text of its query, a vacuum against wraparound is known by the age of its database.
func TestSampler_findsAVacuumAgainstWraparoundWithoutItsText(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		conn := s.Connect(t, "postgres", "app")
		for _, statement := range []string{
			"create table old as select g from generate_series(1, 100000) g",
			"do $$ begin for i in 1..100500 loop perform txid_current(); commit; end loop; end $$",
		} {
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		_ = conn.Close(t.Context())
		await(t, server, activity.Rules{}, "vacuum", func(sample Sample) bool {
			return slices.Contains(sample.Tally.InUse(), idle.ReasonWraparoundVacuum)
		})
	}, "track_activities=off", "autovacuum_freeze_max_age=100000", "autovacuum_naptime=1", "autovacuum_vacuum_cost_delay=100", "autovacuum_vacuum_cost_limit=1")
}

func TestSampler_findsAPreparedTransaction(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 15, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		conn := s.Connect(t, "app", "app")
		for _, statement := range []string{"begin", "create temporary table x (i int)", "rollback", "begin", "select txid_current()", "prepare transaction 'p'"} {
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		_ = conn.Close(t.Context())
		sample := await(t, server, activity.Rules{}, "prepared transaction", func(sample Sample) bool {
			return slices.Contains(sample.Blockers, idle.ReasonPreparedTransaction) && len(sample.Tally.InUse()) == 0
		})
		if len(sample.Blockers) != 1 {
			t.Errorf("blockers %v", sample.Blockers)
		}
	}, "max_prepared_transactions=5")
}

// The ledger shows a session that has started and ended.
func TestSampler_ledgerRisesWithSessionsOfOthers(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		before := await(t, server, activity.Rules{}, "ledger", func(sample Sample) bool { return sample.Started != 0 })
		if again := takeSample(t, server); !before.Ledger.Same(again.Ledger) || again.Started != before.Started {
			t.Errorf("sampling alone changes the ledger: %v, %v", before.Ledger, again.Ledger)
		}
		_ = s.Connect(t, "app", "app").Close(t.Context())
		await(t, server, activity.Rules{}, "session", func(sample Sample) bool {
			return !before.Ledger.Same(sample.Ledger)
		})
		before = takeSample(t, server)
		s.Execute(t, "select pg_stat_reset()") // of the maintenance database
		await(t, server, activity.Rules{}, "reset", func(sample Sample) bool { return !before.Ledger.Same(sample.Ledger) })
		before = takeSample(t, server)
		s.Execute(t, "drop database app")
		await(t, server, activity.Rules{}, "drop", func(sample Sample) bool { return !before.Ledger.Same(sample.Ledger) })
	})
}

// A session whose state has changed since it was judged is not ended.
func TestTerminator_endsOnlyWhatIsStillAsJudged(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		resting, woken, other := s.Connect(t, "app", "app"), s.Connect(t, "app", "app"), s.Connect(t, "postgres", "app")
		rules := activity.Rules{Queries: true, Ignore: []idle.Pattern{{User: "postgres"}}}
		sample := await(t, server, rules, "three sessions", func(sample Sample) bool { return len(sample.Tally.Terminable()) == 3 })
		terminator, err := server.Terminator(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer terminator.Close()
		if _, err := woken.Exec(t.Context(), "select 1"); err != nil { // its state changes after it was judged
			t.Fatal(err)
		}
		late := s.Connect(t, "app", "app")
		ended, err := terminator.Terminate(t.Context(), sample.Tally.Terminable())
		if err != nil || ended != 2 {
			t.Errorf("ended %d (%v), want 2", ended, err)
		}
		alive := func(conn *pgx.Conn) bool { return conn.Ping(t.Context()) == nil }
		if alive(resting) || alive(other) || !alive(woken) || !alive(late) {
			t.Errorf("alive: resting %t, ignored %t, woken %t, late %t", alive(resting), alive(other), alive(woken), alive(late))
		}
		stranger := activity.Terminable{PID: sample.Tally.Terminable()[0].PID, Started: 1}
		if ended, err := terminator.Terminate(t.Context(), []activity.Terminable{stranger}); err != nil || ended != 0 {
			t.Errorf("another session with the same number was ended: %d (%v)", ended, err)
		}
	})
}

// A smart shutdown waits for every session. Sessions that never count may begin until then, and so are ended then.
func TestEndAtStop_endsWhatNeverCountsOnceNobodyConnects(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		s.Execute(t, "create role mon login")
		rules := activity.Rules{Queries: true, Ignore: []idle.Pattern{{User: "mon"}}}
		admin, client, early := s.Connect(t, "postgres", "postgres"), s.Connect(t, "app", "app"), s.Connect(t, "mon", "app")
		ended, failed := 0, error(nil)
		done := make(chan struct{})
		go func() { defer close(done); ended, failed = server.EndAtStop(t.Context(), rules) }()
		awaitTrue(t, admin, "select exists (select from pg_stat_activity where query like '%postmaster.pid%' and pid <> pg_backend_pid())")
		late := s.Connect(t, "mon", "app")
		alive := func(conn *pgx.Conn) bool { return conn.Ping(t.Context()) == nil }
		if !alive(early) || !alive(late) {
			t.Error("sessions were ended before the shutdown began")
		}
		if err := s.Signal(syscall.SIGTERM); err != nil { // smart
			t.Fatal(err)
		}
		<-done
		if failed != nil || ended != 2 {
			t.Errorf("ended %d (%v), want 2", ended, failed)
		}
		if alive(early) || alive(late) || !alive(client) || !alive(admin) {
			t.Errorf("alive: early %t, late %t, client %t, admin %t", alive(early), alive(late), alive(client), alive(admin))
		}
		_, _ = client.Close(t.Context()), admin.Close(t.Context())
		select {
		case <-s.Ended():
		case <-time.After(patience):
			t.Error("PostgreSQL waits for a session")
		}
	})
}

func TestSampler_findsPeers(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		s.Execute(t, "alter role app password 'secret'")
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://app:secret@127.0.0.1:%d/app?sslmode=disable", s.Port))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		local, err := netip.ParseAddrPort(conn.PgConn().Conn().LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		sample := await(t, server, activity.Rules{}, "peer", func(sample Sample) bool { return len(sample.Tally.Peers()) == 1 })
		if class := sample.Tally.Peers()[local]; class != activity.ClassClient || sample.Tally.Local() {
			t.Errorf("peers %v, local %t", sample.Tally.Peers(), sample.Tally.Local())
		}
		s.Connect(t, "app", "app")
		await(t, server, activity.Rules{}, "local session", func(sample Sample) bool { return sample.Tally.Local() })
	})
}

// A server that has stopped and started again has a later checkpoint than one that has not.
func TestSampler_showsTheNewestCheckpoint(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		before := takeSample(t, server)
		if again := takeSample(t, server); before.Checkpointed == 0 || again.Checkpointed != before.Checkpointed {
			t.Errorf("checkpoints at %d and %d", before.Checkpointed, again.Checkpointed)
		}
		stopped := time.Now().Truncate(time.Second) // pg_control has no fractions
		s.Stop(t)
		s.Start(t)
		after := await(t, server, activity.Rules{}, "the server", func(sample Sample) bool { return sample.Started != before.Started })
		if time.UnixMicro(after.Checkpointed).Before(stopped) {
			t.Errorf("the newest checkpoint is of %s, the server stopped at %s", time.UnixMicro(after.Checkpointed), stopped)
		}
	})
}
