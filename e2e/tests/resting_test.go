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

const (
	// resting is the number of a pool's idle sessions on each instance.
	resting = 50
	// slower is how much longer a hibernation may take with idle sessions than without; noise is the variation between two
	// hibernations of the same cluster on two busy cores.
	slower = 1.2
	noise  = 3 * time.Second
)

// With queries, idle sessions on any instance do not delay its shutdown, be it a standby or the primary.
func TestShutdown_restingSessionsDoNotDelayIt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "pooled", 3, never))
	s.annotate(c, scenario.Activity, "queries")
	without := s.hibernation(c)
	for _, row := range []struct {
		where   string
		primary bool
	}{{"on both standbys", false}, {"on every instance", true}} {
		s.wake(c)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		for _, pod := range s.instances(c) {
			if row.primary || pod.Name != c.Status.CurrentPrimary {
				s.rest(c, pod.Name, pod.Status.PodIP)
			}
		}
		with := s.hibernation(c)
		t.Logf("%d resting sessions %s: hibernated %.1fs after the switch, %.1fs without them", resting, row.where, with.Seconds(), without.Seconds())
		if most := time.Duration(slower*float64(without)) + noise; with > most {
			t.Errorf("%d resting sessions %s: hibernation took %s, want at most %s", resting, row.where, with, most)
		}
	}
}

// hibernation lets the cluster fall asleep and returns how long that took from the switch.
func (s *story) hibernation(c *cnpgv1.Cluster) time.Duration {
	s.Helper()
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	on, err := kube.AwaitCluster(s.ctx, c, "asleep", threshold+2*time.Minute, scenario.SwitchedOn)
	s.must(err)
	done, err := kube.AwaitCluster(s.ctx, c, "hibernated", 4*time.Minute, scenario.Hibernated)
	s.must(err)
	s.annotate(c, scenario.InactivityMinutes, never)
	return done.Sub(on)
}

// rest opens idle sessions on an instance and waits until they are established.
func (s *story) rest(c *cnpgv1.Cluster, pod, address string) {
	s.Helper()
	_, err := kube.Client(s.ctx, c.Namespace, fmt.Sprintf(`export PGPASSWORD=%s
for i in {1..%d}; do
	(sleep 600 | psql -XAtq "host=%s user=app dbname=app application_name=resting sslmode=disable") >/dev/null 2>&1 </dev/null &
done`, s.password(c), resting, address))
	s.must(err)
	for deadline := time.Now().Add(time.Minute); ; {
		count, err := kube.Exec(s.ctx, c.Namespace, pod, "postgres", "psql", "-XAtqc",
			"select count(*) from pg_stat_activity where application_name = 'resting' and state = 'idle'")
		s.must(err)
		if number, err := strconv.Atoi(strings.TrimSpace(count)); err == nil && number == resting {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s of %d sessions rest on %s", strings.TrimSpace(count), resting, pod)
		}
	}
}
