package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// An external base backup, and a subscription with its slot, keep the cluster awake while they run. A slot without a consumer
// does not.
func TestReplicationBlocks(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "read", 1, never)
	c.Spec.PostgresConfiguration.PgHBA = []string{"host replication saver all scram-sha-256"}
	s.running(c)

	s.asSuperuser(c, "app", "create role saver login replication password 'right'")
	_, err := kube.Client(s.ctx, s.namespace, `PGPASSWORD=right pg_basebackup -d 'host=read-rw user=saver sslmode=require' -D /tmp/base -X none -c fast -r 32k >/tmp/base.log 2>&1 &
echo $! >/tmp/base.pid`) // it takes some minutes at the lowest rate
	s.must(err)
	s.blockedBy(c, "base_backup", "replication_client")
	_, err = kube.Client(s.ctx, s.namespace, `kill "$(cat /tmp/base.pid)"`)
	s.must(err)

	s.asSuperuser(c, "app", "create table sold (i int); create publication sales for table sold")
	s.asSuperuser(c, "app", "select pg_create_logical_replication_slot('sales', 'pgoutput')")
	s.asSuperuser(c, "postgres", "create database copy")
	s.asSuperuser(c, "copy", "create table sold (i int)")
	s.asSuperuser(c, "copy", `create subscription sales connection 'host=/controller/run user=postgres dbname=app' publication sales
		with (create_slot = false)`)
	s.blockedBy(c, "subscription", "logical_slot", "replication_client")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "subscription", "a subscription that runs")
	s.asSuperuser(c, "copy", "alter subscription sales disable")
	s.fallsAsleep(c, "asleep beside a slot that nobody reads")
}

// A subscriber stays awake while its publisher cannot be reached, when no worker of its subscription runs: asleep, it would not come back
// to a publisher that retains WAL for it.
func TestAbsentPublisherKeepsItsSubscriberAwake(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	s.asSuperuser(c, "postgres", `create subscription away connection 'host=127.0.0.1 port=1 dbname=app' publication sales
		with (connect = false, slot_name = 'away')`)
	s.asSuperuser(c, "postgres", "alter subscription away enable")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, time.Minute, "subscription", "a subscription without its publisher")
	s.annotate(c, scenario.InactivityMinutes, never)
	s.asSuperuser(c, "postgres", "alter subscription away disable; alter subscription away set (slot_name = none); drop subscription away")
}

// A job of pg_cron keeps the cluster awake while it runs; the idle launcher does not.
func TestBackgroundWorkerBlocks(t *testing.T) {
	whole(t)
	t.Parallel()
	if !strings.HasPrefix(kube.PostgresImage, "localhost/postgresql:") {
		t.Skip("pg_cron is in the images that are made here only")
	}
	s := begin(t)
	c := kube.NewCluster(s.namespace, "timed", 1, never)
	c.Spec.PostgresConfiguration.AdditionalLibraries = []string{"pg_cron"}
	c.Spec.PostgresConfiguration.Parameters = map[string]string{"cron.database_name": "app", "cron.use_background_workers": "on"}
	s.running(c)
	s.asSuperuser(c, "app", "create extension pg_cron; select cron.schedule('nap', '* * * * *', 'select pg_sleep(600)')")
	s.blockedBy(c, "background_worker")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "background_worker", "a job of pg_cron")
	s.asSuperuser(c, "app", `select cron.unschedule('nap');
		select pg_terminate_backend(pid) from pg_stat_activity where query = 'select pg_sleep(600)'`)
	s.fallsAsleep(c, "asleep beside pg_cron's launcher")
}
