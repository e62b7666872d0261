package tests

import (
	"fmt"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The reference project's own example works unchanged: three instances, superuser access, the plugin, its two annotations and a
// ScheduledBackup with the cluster's name.
func TestReferenceExample(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "cluster-example", 3, "1")
	superuser := true
	c.Spec.EnableSuperuserAccess = &superuser
	s.must(kube.Create(s.ctx, c))
	schedule := scenario.NewScheduledBackup(c, "cluster-example", "0 * * * * *")
	s.must(kube.Create(s.ctx, schedule))
	missed := scenario.NewScheduledBackup(c, "missed", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, missed))
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.must(kube.StartClient(s.ctx, c))

	session := s.open(c, "rw")
	for _, pod := range s.instances(c) {
		if sidecar(pod) == nil {
			t.Errorf("instance %s has no sidecar", pod.Name)
		}
	}
	before, after := session.Close()
	s.asleepOnTime(c, before, after, time.Minute)

	if _, err := scenario.Await(s.ctx, kube, schedule, "suspended", toSettle, suspended); err != nil {
		t.Error(err)
	}
	if schedule.Annotations[scenario.Suspended] == "" {
		t.Errorf("the suspended schedule carries no mark: %v", schedule.Annotations)
	}
	if c.Annotations[scenario.AsleepSince] == "" {
		t.Errorf("the cluster does not say since when it sleeps: %v", c.Annotations)
	}
	if _, err := kube.AwaitEvent(s.ctx, c, "Hibernated", toSettle); err != nil {
		t.Error(err)
	}

	// The only slot of the schedule within a year passes while the cluster sleeps: its Backup can only be made by catching up.
	slot := time.Now().UTC().Truncate(time.Minute).Add(2 * time.Minute)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(missed), missed))
	changed := missed.DeepCopy()
	changed.Spec.Schedule = fmt.Sprintf("0 %d %d %d %d *", slot.Minute(), slot.Hour(), slot.Day(), slot.Month())
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(missed)))
	pause(s, time.Until(slot.Add(time.Second)))
	if before := backups(s, missed); before != 0 {
		t.Fatalf("asleep, %d Backups of the slot were made", before)
	}
	s.must(kube.Wake(s.ctx, c))
	s.resumed(schedule)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	for deadline := time.Now().Add(toHealthy); backups(s, missed) == 0; pause(s, pollEvery) {
		if time.Now().After(deadline) {
			t.Fatal("the missed slot is not caught up")
		}
	}
}

func suspended(b *cnpgv1.ScheduledBackup) bool { return b.Spec.Suspend != nil && *b.Spec.Suspend }

// backups counts the Backup objects of a schedule.
func backups(s *story, of *cnpgv1.ScheduledBackup) int {
	s.Helper()
	var list cnpgv1.BackupList
	s.must(kube.List(s.ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{"cnpg.io/scheduled-backup": of.Name}))
	return len(list.Items)
}

// pause waits, and ends the test if its context ends first.
func pause(s *story, d time.Duration) {
	s.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		s.Fatal(s.ctx.Err())
	}
}
