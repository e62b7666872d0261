package tests

import (
	"context"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Hibernation is turned on, but the answer is lost: going to sleep continues all the same. The schedules stay suspended, idle
// sessions are terminated, and after the wake the schedules are resumed. LOST_ANSWERS is the number of repetitions.
func TestHandover_aLostAnswerUndoesNothing(t *testing.T) {
	t.Parallel()
	s := begin(t)
	interceptor := s.intercept() // the API server learns of it while the cluster is made
	c := s.running(kube.NewCluster(s.namespace, "cut", 1, never))
	s.annotate(c, scenario.Activity, "queries")
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	for range repeats(t, "LOST_ANSWERS", 1) {
		relay := s.relay(c)
		session := s.open(c, "rw")
		held, release := interceptor.Hold(func(change scenario.Change) bool {
			if !turnsHibernationOn(change) {
				return false
			}
			relay.Lose()
			return true
		})
		release() // the sidecar would not wait for a change that is held for long
		s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		s.held(held)
		_, err := kube.AwaitCluster(s.ctx, c, "hibernated", toSettle, scenario.HibernationOn)
		s.must(err)
		undone := s.watchResumed(schedule)
		s.hibernated(c) // a shutdown would wait for an idle session that is not terminated
		if undone() {
			t.Error("the schedule was resumed while the cluster fell asleep")
		}
		session.Close()
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
		if _, marked := schedule.Annotations[scenario.Suspended]; !suspended(schedule) || !marked {
			t.Errorf("asleep, the schedule is suspended %t and marked %t", suspended(schedule), marked)
		}
		s.annotate(c, scenario.InactivityMinutes, never)
		s.wake(c)
		s.resumed(schedule)
		s.must(relay.Close())
	}
}

// relay routes the primary's sidecar to the API server through a Relay, and waits until it samples again.
func (s *story) relay(c *cnpgv1.Cluster) *scenario.Relay {
	s.Helper()
	pod := s.instances(c)[0]
	workers := processesOf(pod, "worker")
	if len(workers) != 1 {
		s.Fatalf("the pod has %d workers that can be seen from here, want one", len(workers))
	}
	relay, err := kube.Relay(s.ctx, workers[0])
	s.must(err)
	s.must(syscall.Kill(workers[0], syscall.SIGKILL)) // the next worker opens new connections
	for deadline := time.Now().Add(toSettle); relay.Connections() == 0; pause(s, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatal("the sidecar's connections to the API server are not routed through the relay")
		}
	}
	s.listens(c)
	return relay
}

// watchResumed watches a suspended schedule until the returned function is called, which reports whether it was resumed.
func (s *story) watchResumed(schedule *cnpgv1.ScheduledBackup) func() bool {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
	ctx, stop := context.WithCancel(s.ctx)
	watched, resumed := schedule.DeepCopy(), make(chan bool, 1)
	go func() {
		_, err := kube.AwaitScheduledBackup(ctx, watched, "resumed", toHealthy, func(b *cnpgv1.ScheduledBackup) bool { return !suspended(b) })
		resumed <- err == nil
	}()
	return func() bool { stop(); return <-resumed }
}
