package tests

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// outlives is how long a session is used through a replica that was told to stop: longer than the two seconds for which a replica that
// did not wait for its sessions would stay, and much shorter than drainTimeout, the setting DRAIN_TIMEOUT, after which a replica ends.
const (
	outlives     = 6 * time.Second
	drainTimeout = 20 * time.Second
)

// A pool that was opened while its cluster woke stays on the gateway. A rollout of the plugin ends the replica, and the replica
// waits DRAIN_TIMEOUT for its sessions.
func TestRollout_cutsNoSession(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	s.until(func() bool { return d.usesAPoolThroughEndingReplicas(c) }, "a session was used while its replica waited")
}

// usesAPoolThroughEndingReplicas opens a pool while the cluster wakes, replaces the plugin, and checks that the sessions can be used while
// their replicas wait for them. It reports whether any was.
func (s *disturber) usesAPoolThroughEndingReplicas(c *cnpgv1.Cluster) bool {
	s.Helper()
	const clients = 4
	s.sleeps(c)

	pool := make([]*scenario.Session, clients)
	var opening errgroup.Group
	for i := range pool {
		opening.Go(func() (err error) {
			pool[i], err = kube.OpenAs(s.ctx, c, "rw", fmt.Sprintf("%s application_name=pool-%d", fromAfar, i))
			return err
		})
	}
	s.must(opening.Wait())
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))

	gateways := s.replicas()
	stops := make([]func() (time.Time, error), len(gateways))
	through := make([][]*scenario.Session, len(gateways))
	led := 0
	for i := range gateways {
		stops[i] = s.followDeletion(gateways[i])
		for _, number := range s.poolThrough(c, gateways[i].Status.PodIP) {
			through[i] = append(through[i], pool[number])
		}
		led += len(through[i])
	}
	if led == 0 {
		s.Fatal("no session passes through the gateway")
	}
	s.replacePlugin()
	var using errgroup.Group
	var used atomic.Int32 // replicas whose sessions were used for long enough after they were told to stop
	for i := range gateways {
		using.Go(func() error {
			stopped, err := stops[i]()
			if err != nil {
				return err
			}
			for end := time.Now().Add(outlives); time.Now().Before(end); {
				for _, session := range through[i] {
					err := session.Run("select pg_sleep(0.2)")
					if err != nil && time.Since(stopped) > drainTimeout {
						s.Logf("the sessions through %s were cut %.1fs after it was told to stop", gateways[i].Name, time.Since(stopped).Seconds())
						return nil // the machine stood still meanwhile, and the replica has waited; this shows nothing
					}
					if err != nil {
						return fmt.Errorf("through %s, %.1fs after it was told to stop: %w", gateways[i].Name, time.Since(stopped).Seconds(), err)
					}
				}
				if len(through[i]) == 0 {
					break
				}
			}
			if len(through[i]) != 0 {
				used.Add(1)
			}
			s.Logf("%d sessions were used through %s until %.1fs after it was told to stop", len(through[i]), gateways[i].Name, time.Since(stopped).Seconds())
			for _, session := range through[i] { // the replica waits for it
				session.Close()
			}
			return nil
		})
	}
	s.must(using.Wait())
	s.rolledOut()
	return used.Load() != 0
}

// poolThrough returns the numbers of the pool's sessions that come from the address.
func (s *story) poolThrough(c *cnpgv1.Cluster, address string) (numbers []int) {
	s.Helper()
	out, err := kube.Exec(s.ctx, s.namespace, c.Status.CurrentPrimary, "postgres", "psql", "-XAtqU", "postgres", "-c",
		"select application_name from pg_stat_activity where application_name like 'pool-%' and client_addr = '"+address+"'")
	s.must(err)
	for name := range strings.Lines(out) {
		var number int
		_, err := fmt.Sscanf(name, "pool-%d", &number)
		s.must(err)
		numbers = append(numbers, number)
	}
	return numbers
}
