package postgres

import (
	"testing"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
)

func TestSchedulesJobs_knowsTheExtensions(t *testing.T) {
	t.Parallel()
	for libraries, want := range map[string]bool{
		"":                                false,
		"pg_cron":                         true,
		"pg_stat_statements, pg_cron":     true,
		"timescaledb":                     true,
		`"timescaledb-2.17.0"`:            true,
		"$libdir/pg_partman_bgw":          true,
		"$libdir/pg_cron.so":              true,
		"pg_stat_statements,auto_explain": false,
		"my_pg_cron":                      false,
		"timescaledb_toolkit":             false,
	} {
		if got := schedulesJobs(libraries); got != want {
			t.Errorf("%q: %t, want %t", libraries, got, want)
		}
	}
}

func TestSample_readsTheLibrariesAsFarAsItMay(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		server := prepare(t, s)
		if takeSample(t, server).Scheduler {
			t.Error("a library that schedules nothing is taken for a scheduler")
		}
		s.Execute(t, "revoke pg_monitor from cnpg_metrics_exporter")
		takeSample(t, server)
	}, "shared_preload_libraries=auto_explain")
}
