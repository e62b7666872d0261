package tests

import (
	"fmt"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A schedule whose suspension somebody else came to own while the cluster slept stays suspended after the wake and loses our
// mark. Setting the existing value again leaves no trace in Kubernetes, so that such a schedule is resumed.
func TestWake_schedulesOfOthersStaySuspended(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "scheduled", 1, never))
	rows := []struct {
		name  string
		act   func(*cnpgv1.ScheduledBackup)
		stays bool
	}{
		{"left-alone", func(*cnpgv1.ScheduledBackup) {}, false},
		{"applied", func(b *cnpgv1.ScheduledBackup) { s.applySuspended(b) }, true},
		{"off-and-on", func(b *cnpgv1.ScheduledBackup) { s.suspend(b, false); s.suspend(b, true) }, true},
		{"the-same-again", func(b *cnpgv1.ScheduledBackup) { s.suspend(b, true) }, false},
	}
	schedules := map[string]*cnpgv1.ScheduledBackup{}
	for _, row := range rows {
		schedules[row.name] = scenario.NewScheduledBackup(c, row.name, "0 0 0 1 1 *")
		s.must(kube.Create(s.ctx, schedules[row.name]))
	}
	s.sleeps(c)
	for _, row := range rows {
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedules[row.name]), schedules[row.name]))
		if _, marked := schedules[row.name].Annotations[scenario.Suspended]; !marked || !suspended(schedules[row.name]) {
			t.Fatalf("asleep, %s is suspended %t and marked %t", row.name, suspended(schedules[row.name]), marked)
		}
		row.act(schedules[row.name])
	}
	s.wake(c)
	for _, row := range rows {
		_, err := kube.AwaitScheduledBackup(s.ctx, schedules[row.name], "no longer marked", toHealthy, func(b *cnpgv1.ScheduledBackup) bool {
			_, marked := b.Annotations[scenario.Suspended]
			return !marked
		})
		s.must(err)
		if got := suspended(schedules[row.name]); got != row.stays {
			t.Errorf("awake, %s is suspended %t, want %t", row.name, got, row.stays)
		}
	}
}

// suspend suspends or resumes a schedule like a person with kubectl patch.
func (s *story) suspend(schedule *cnpgv1.ScheduledBackup, yes bool) {
	s.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, yes))
	s.must(kube.Patch(s.ctx, schedule.DeepCopy(), patch, client.FieldOwner("kubectl-patch")))
}

// applySuspended suspends a schedule like a GitOps tool.
func (s *story) applySuspended(schedule *cnpgv1.ScheduledBackup) {
	s.Helper()
	applied := fmt.Appendf(nil, `{"apiVersion":%q,"kind":"ScheduledBackup","metadata":{"name":%q},"spec":{"schedule":%q,"suspend":true,"cluster":{"name":%q}}}`,
		cnpgv1.SchemeGroupVersion, schedule.Name, schedule.Spec.Schedule, schedule.Spec.Cluster.Name)
	s.must(kube.Patch(s.ctx, schedule.DeepCopy(), client.RawPatch(types.ApplyPatchType, applied), client.FieldOwner("gitops"), client.ForceOwnership))
}
