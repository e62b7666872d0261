package tests

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toTake is the duration of the Backups made during a handover.
const toTake = 15 * time.Second

// A Backup that a person makes during the handover never fails: the cluster stays awake until it has completed, and then
// sleeps.
func TestHandover_aBackupByHandWins(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	neighbour := s.neighbour(image)
	for _, row := range []struct {
		phase     string
		schedules []string
		held      func(scenario.Change) bool
	}{
		{"about to be acknowledged with nothing to suspend", nil, acknowledges},
		{"acknowledged", []string{"only"}, suspends(1)},
		{"suspended", []string{"first", "second"}, suspends(2)},
	} {
		t.Run(row.phase, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			interceptor := s.intercept() // the API server learns of it while the cluster is made
			c := kube.NewCluster(s.namespace, "by-hand", 1, never)
			c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
			s.starts(c)
			for _, name := range row.schedules {
				s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, name, "0 0 0 1 1 *")))
			}
			held, release := interceptor.Hold(row.held)
			defer release()
			s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
			s.held(held)
			s.backupWins(c, neighbour.Name, release)
		})
	}
}

// backupWins makes a Backup, lets the handover continue, and checks that the cluster sleeps only after the Backup has
// completed.
func (s *story) backupWins(c *cnpgv1.Cluster, neighbour string, release func()) {
	s.Helper()
	backup := &cnpgv1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "by-hand"},
		Spec: cnpgv1.BackupSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: c.Name}, Method: cnpgv1.BackupMethodPlugin,
			PluginConfiguration: takes(neighbour, toTake),
		},
	}
	s.must(kube.Create(s.ctx, backup))
	release()
	_, err := scenario.Await(s.ctx, kube, backup, "ended", toHealthy, func(b *cnpgv1.Backup) bool {
		return b.Status.Phase == cnpgv1.BackupPhaseCompleted || b.Status.Phase == cnpgv1.BackupPhaseFailed
	})
	s.must(err)
	s.fallsAsleep(c, "asleep after the Backup")
	s.completed(c, backup)
}

// completed checks that a Backup was completed before the sidecar turned hibernation on: the operator flags one that runs then as
// failed.
func (s *story) completed(c *cnpgv1.Cluster, backup *cnpgv1.Backup) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(backup), backup))
	if backup.Status.Phase != cnpgv1.BackupPhaseCompleted || backup.Status.StoppedAt == nil || asleepSince(c).Before(backup.Status.StoppedAt.Time) {
		s.Errorf("the cluster was put to sleep before %s, while the Backup was %q (%s), stopped at %s",
			asleepSince(c), backup.Status.Phase, backup.Status.Error, backup.Status.StoppedAt)
	}
}
