package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// soaking enables the tests that make e2e leaves out, and makes others run for longer: make soak (CONTRIBUTING.md lists them).
var soaking = os.Getenv("SOAK") != ""

// killEvery is the interval between two kills of a plugin replica.
const killEvery = 20 * time.Second

// excused is how long after an abrupt death of a replica a failed connection may still be due to it: the other replica has 10 s
// to remove the dead one's slices, and then every kube-proxy must be updated.
const excused = 12 * time.Second

// late is how long after hibernation a node may still route clients to PostgreSQL, which waits two seconds before it shuts down.
// often is the minimum number of sleeps for each client refused because of that.
const (
	late  = 10 * time.Second
	often = 5
)

// The plugin's replicas are killed in turn while clusters fall asleep, are woken by connections and fail over. Nothing gets
// stuck. The only clients refused are those whose replica died abruptly, and, by PostgreSQL itself, those that a node routed to
// it for longer than it waits before its shutdown.
func TestReplicasKilledUnderLoad(t *testing.T) {
	whole(t)
	if !soaking {
		t.Skip("how many of many clients are refused is a statistic: make soak")
	}
	const count, length = 10, 5 * time.Minute
	s := disturbing(t)
	var clusters []*cnpgv1.Cluster
	for i := range count {
		clusters = append(clusters, s.cluster(fmt.Sprintf("busy-%d", i), 1+i%3/2)) // each third has a standby
	}
	s.together(clusters...)
	d := s.turn(clusters...)

	kills, until := d.killReplicas(length), time.Now().Add(length)
	lives := make([]tally, count)
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() {
			for time.Now().Before(until) {
				if err := lives[i].live(s.ctx, c); err != nil {
					t.Errorf("%s: %v", c.Name, err)
					return
				}
			}
		})
	}
	group.Wait()
	s.rolledOut()
	total, killed := tally{}, kills()
	for i, c := range clusters {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.settled(c)
		total.add(lives[i])
	}
	shutDown := 0
	for _, attempt := range total.refused {
		if attempt.shutDown() {
			shutDown++
		} else if !killed.excuse(attempt) {
			t.Errorf("refused %s after it began, at %s: %v", attempt.end.Sub(attempt.start), attempt.start.Format(time.TimeOnly), attempt.err)
		}
	}
	if shutDown*often > total.sleeps {
		t.Errorf("%d clients were refused by a PostgreSQL that shut down, in %d sleeps", shutDown, total.sleeps)
	}
	t.Logf("%d replicas killed, %d of them without notice; %d sleeps, %d failovers, %d wakes; %d further tries, %d of them for a PostgreSQL that shut down; the longest took %.1fs",
		len(killed), len(killed.abrupt()), total.sleeps, total.failovers, total.wakes, len(total.refused), shutDown, total.longest.Seconds())
}

// attempt is a connection that failed after hibernation of its cluster had been turned on.
type attempt struct {
	hibernated, start, end time.Time
	err                    error
}

// shutDown reports whether PostgreSQL refused it during the shutdown for that sleep.
func (a attempt) shutDown() bool {
	return strings.Contains(a.err.Error(), "the database system is shutting down") && a.start.Before(a.hibernated.Add(late))
}

// tally counts what happened to the clusters.
type tally struct {
	sleeps, wakes, failovers int
	longest                  time.Duration
	refused                  []attempt
}

func (y *tally) add(other tally) {
	y.sleeps, y.wakes, y.failovers = y.sleeps+other.sleeps, y.wakes+other.wakes, y.failovers+other.failovers
	y.longest, y.refused = max(y.longest, other.longest), append(y.refused, other.refused...)
}

// live makes a cluster fail over if it has a standby, fall asleep, and be woken by a client.
func (y *tally) live(ctx context.Context, c *cnpgv1.Cluster) error {
	if c.Spec.Instances > 1 {
		if err := failOver(ctx, c); err != nil {
			return err
		}
		y.failovers++
	}
	soon, later := thresholdMinutes, never
	if err := kube.Annotate(ctx, c, scenario.InactivityMinutes, &soon); err != nil {
		return err
	}
	hibernated, err := kube.AwaitCluster(ctx, c, "asleep", threshold+3*time.Minute, scenario.HibernationOn)
	if err != nil {
		return err
	}
	y.sleeps++
	if err := kube.Annotate(ctx, c, scenario.InactivityMinutes, &later); err != nil {
		return err
	}
	for asleep := true; asleep; asleep = scenario.HibernationOn(c) { // the terminating instance may still answer
		begun := time.Now()
		if err := y.connect(ctx, c, hibernated, begun.Add(3*time.Minute)); err != nil {
			return err
		}
		y.longest = max(y.longest, time.Since(begun))
		if err := kube.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
	}
	y.wakes++
	return kube.AwaitHealthy(ctx, c, toHealthy)
}

// connect makes a client retry until it is answered.
func (y *tally) connect(ctx context.Context, c *cnpgv1.Cluster, hibernated, deadline time.Time) error {
	for {
		start := time.Now()
		answer, err := kube.QueryAs(ctx, c, "rw", oneOfMany, "select 1")
		if err == nil && answer == "1" {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the answer was %q", answer)
		}
		y.refused = append(y.refused, attempt{hibernated, start, time.Now(), err})
		if time.Now().After(deadline) {
			return fmt.Errorf("no client was answered: %w", err)
		}
	}
}

// failOver kills the primary abruptly and waits until another instance is primary of a healthy cluster.
func failOver(ctx context.Context, c *cnpgv1.Cluster) error {
	if err := kube.Get(ctx, client.ObjectKeyFromObject(c), c); err != nil {
		return err
	}
	primary := &corev1.Pod{}
	primary.Namespace, primary.Name = c.Namespace, c.Status.CurrentPrimary
	if err := kube.Delete(ctx, primary, &client.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		return err
	}
	_, err := kube.AwaitCluster(ctx, c, "failed over", toHealthy, func(c *cnpgv1.Cluster) bool {
		return c.Status.CurrentPrimary != primary.Name && scenario.Healthy(c)
	})
	return err
}

// kill is the death of a plugin replica: graceful like an eviction, or abrupt.
type kill struct {
	at     time.Time
	notice bool
}

type kills []kill

func (k kills) abrupt() (found kills) {
	for _, one := range k {
		if !one.notice {
			found = append(found, one)
		}
	}
	return found
}

// excuse reports whether the failed attempt may be due to a replica's abrupt death.
func (k kills) excuse(a attempt) bool {
	for _, one := range k.abrupt() {
		if one.at.Add(excused).After(a.start) && one.at.Before(a.end) {
			return true
		}
	}
	return false
}

// killReplicas repeatedly kills the older replica of the plugin, alternately gracefully and abruptly, as soon as there are two
// again and at most every [killEvery], for the given time. The returned function waits for the end.
func (s *disturber) killReplicas(length time.Duration) func() kills {
	ctx, stop := context.WithTimeout(s.ctx, length)
	selector := client.MatchingLabels(s.plugin().Spec.Selector.MatchLabels)
	done := make(chan kills, 1)
	go func() {
		var killed kills
		defer func() { done <- killed }()
		defer stop()
		ticker := time.NewTicker(killEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := kube.AwaitDeployment(ctx, scenario.OperatorNamespace, scenario.PluginDeployment, time.Minute); err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					s.Errorf("a replica that was killed is not replaced: %v", err)
				}
				return
			}
			notice := len(killed)%2 == 0
			at, err := killOldest(ctx, selector, notice)
			if err != nil {
				s.Errorf("kill a replica: %v", err)
				return
			}
			killed = append(killed, kill{at, notice})
		}
	}()
	return func() kills { return <-done }
}

func killOldest(ctx context.Context, selector client.MatchingLabels, notice bool) (time.Time, error) {
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(scenario.OperatorNamespace), selector); err != nil {
		return time.Time{}, err
	}
	var oldest *corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp == nil && (oldest == nil || pod.CreationTimestamp.Before(&oldest.CreationTimestamp)) {
			oldest = pod
		}
	}
	if oldest == nil {
		return time.Time{}, errors.New("there is none")
	}
	var options client.DeleteOptions
	if !notice {
		options.GracePeriodSeconds = ptr.To(int64(0))
	}
	at := time.Now()
	return at, kube.Delete(ctx, oldest, &options)
}
