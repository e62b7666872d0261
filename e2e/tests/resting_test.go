package tests

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// resting is the number of a pool's idle sessions on each instance.
const resting = 50

// With queries, idle sessions do not delay the shutdown of any instance, standby or primary: its sidecar ends them. A session that is
// not ended keeps its instance, and the hibernation with it, for the time of a smart shutdown, which toHibernate excludes.
func TestShutdown_restingSessionsDoNotDelayIt(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "pooled", 3, never))
	s.annotate(c, scenario.Activity, "queries")
	for _, pod := range s.instances(c) {
		s.rest(c, pod.Name, pod.Status.PodIP)
	}
	s.sleeps(c)
	_, err := kube.AwaitEventSaying(s.ctx, c, "Hibernated", fmt.Sprintf("ended sessions that do not count: %d", resting), toSettle)
	s.must(err)
}

// Monitoring that is ignored, and reconnects as soon as its session is ended, reaches PostgreSQL until that stops. It does not delay the
// shutdown either.
func TestShutdown_monitoringThatReconnectsAtOnceDoesNotDelayIt(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	s.annotate(c, scenario.Ignore, "application=monitor")
	pod := s.instances(c)[0]
	_, err := kube.Client(s.ctx, c.Namespace, fmt.Sprintf(`export PGPASSWORD=%s; rm -f /tmp/leave
(until [ -e /tmp/leave ]; do
	psql -XAtqc 'select pg_sleep(600)' "host=%s user=app dbname=app application_name=monitor sslmode=disable connect_timeout=2"
	sleep 0.05
done) >/dev/null 2>&1 </dev/null &`, s.password(c), pod.Status.PodIP))
	s.must(err)
	t.Cleanup(func() { _, _ = kube.Client(cleanup(t), c.Namespace, "touch /tmp/leave") })
	s.sessions(c, pod.Name, "application_name = 'monitor'", 1)
	s.sleeps(c)
}

// rest opens idle sessions on an instance and waits until they are established.
func (s *story) rest(c *cnpgv1.Cluster, pod, address string) {
	s.Helper()
	_, err := kube.Client(s.ctx, c.Namespace, fmt.Sprintf(`export PGPASSWORD=%s
for i in {1..%d}; do
	(sleep 600 | psql -XAtq "host=%s user=app dbname=app application_name=resting sslmode=disable") >/dev/null 2>&1 </dev/null &
done`, s.password(c), resting, address))
	s.must(err)
	s.sessions(c, pod, "application_name = 'resting' and state = 'idle'", resting)
}

// sessions waits until an instance has so many sessions.
func (s *story) sessions(c *cnpgv1.Cluster, pod, which string, want int) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		count, err := kube.Exec(s.ctx, c.Namespace, pod, "postgres", "psql", "-XAtqc", "select count(*) from pg_stat_activity where "+which)
		s.must(err)
		if number, err := strconv.Atoi(strings.TrimSpace(count)); err == nil && number == want {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s of %d sessions of %s, where %s", strings.TrimSpace(count), want, pod, which)
		}
	}
}
