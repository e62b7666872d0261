package postgres

import (
	"strings"
	"testing"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

// With synchronizeLogicalDecoding, a standby's own worker copies the logical slots of its primary, over a session in the database
// postgres under the standby's name.
func TestSampler_theWorkerThatSynchronizesSlotsDoesNotCount(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 17, func(t *testing.T, s *postgrestest.Server) {
		primary := prepare(t, s)
		s.Execute(t, "select pg_create_physical_replication_slot('c_2')", "select pg_create_logical_replication_slot('failover', 'pgoutput', false, false, true)")
		standby := s.Standby(t)
		follower := standby.Connect(t, "postgres", "postgres", "application_name=cnpg-instance-manager")
		var conninfo string
		if err := follower.QueryRow(t.Context(), "show primary_conninfo").Scan(&conninfo); err != nil {
			t.Fatal(err)
		}
		// As CloudNativePG writes it (1.30: pkg/management/postgres/instance.go, buildPrimaryConnInfo).
		conninfo += " user=streaming_replica application_name=c-2 dbname=postgres"
		for _, statement := range []string{
			"alter system set primary_conninfo = '" + strings.ReplaceAll(conninfo, "'", "''") + "'", "alter system set primary_slot_name = 'c_2'",
			"alter system set hot_standby_feedback = on", "alter system set sync_replication_slots = on", "select pg_reload_conf()",
		} {
			if _, err := follower.Exec(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		awaitTrue(t, follower, "select exists (select from pg_stat_activity where backend_type = 'slotsync worker')")
		admin := s.Connect(t, "postgres", "postgres", "application_name=cnpg-instance-manager")
		awaitTrue(t, admin, "select count(*) = 2 and count(*) filter (where backend_type = 'client backend' and datname = 'postgres') = 1"+
			" from pg_stat_activity where usename = 'streaming_replica' and application_name = 'c-2'") // the worker's and the walreceiver's
		for where, server := range map[string]*Server{"the primary": primary, "the standby": serverOf(standby)} {
			if sample := takeSample(t, server); len(sample.Tally.InUse()) != 0 {
				t.Errorf("%s is in use: %v", where, sample.Tally.InUse())
			}
		}
		// A smart shutdown would wait for it.
		if sample := takeSample(t, primary); len(sample.Tally.Terminable()) != 1 {
			t.Errorf("to be ended are %v, want the worker's session", sample.Tally.Terminable())
		}
	})
}
