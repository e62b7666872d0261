package tests

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Only schedules of the cluster that nobody else suspended are suspended, and only those are resumed; a running Backup keeps
// the cluster awake.
func TestScheduledBackups(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	c := kube.NewCluster(s.namespace, "backed-up", 1, never)
	neighbour := s.neighbour(image)
	c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
	s.running(c)
	const yearly = "0 0 0 1 1 *"
	ours := scenario.NewScheduledBackup(c, "ours", yearly)
	persons := scenario.NewScheduledBackup(c, "suspended-by-a-person", yearly)
	yes := true
	persons.Spec.Suspend = &yes
	others := scenario.NewScheduledBackup(c, "of-another-cluster", yearly)
	others.Spec.Cluster.Name = "another"
	for _, schedule := range []*cnpgv1.ScheduledBackup{ours, persons, others} {
		s.must(kube.Create(s.ctx, schedule))
	}

	backup := s.backup(c, neighbour.Name, time.Hour)
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	session.Close()
	s.awake(c, threshold, "backup_running", "a Backup that runs")
	if _, err := kube.AwaitEvent(s.ctx, c, "SleepBlocked", toSettle); err != nil {
		t.Error(err)
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(ours), ours))
	if suspended(ours) {
		t.Error("a schedule is suspended while a Backup keeps the cluster awake")
	}

	s.must(kube.Delete(s.ctx, backup))
	s.fallsAsleep(c, "asleep after the Backup ended")
	for _, schedule := range []*cnpgv1.ScheduledBackup{ours, persons, others} {
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
		_, marked := schedule.Annotations[scenario.Suspended]
		wantMark, wantSuspended := schedule == ours, schedule != others
		if suspended(schedule) != wantSuspended || marked != wantMark {
			t.Errorf("asleep: %s suspended %t (want %t), marked %t (want %t)",
				schedule.Name, suspended(schedule), wantSuspended, marked, wantMark)
		}
	}

	s.annotate(c, scenario.InactivityMinutes, never)
	s.wake(c)
	s.resumed(ours)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(persons), persons))
	if !suspended(persons) {
		t.Error("the schedule that a person suspended was resumed")
	}
}

// resumed waits until a schedule is resumed, and no longer marked.
func (s *story) resumed(schedule *cnpgv1.ScheduledBackup) {
	s.Helper()
	_, err := scenario.Await(s.ctx, kube, schedule, "resumed", toHealthy, func(b *cnpgv1.ScheduledBackup) bool {
		_, marked := b.Annotations[scenario.Suspended]
		return !suspended(b) && !marked
	})
	s.must(err)
}
