package wake

import (
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestWakeForBackup(t *testing.T) {
	t.Parallel()
	without := func(changes func(*cnpgv1.Cluster), key string) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) { changes(c); delete(c.Annotations, key) }
	}
	for _, row := range []struct {
		rule         string
		cluster      func(*cnpgv1.Cluster)
		fencer       string
		waits, wakes bool
	}{
		{"a dozing cluster is woken", dozes, contract.FieldManager, true, true},
		{"an awake one need not be", wakes, contract.FieldManager, false, false},
		{"one whose PostgreSQL is stopping is waited for", without(dozes, contract.AnnotationPostgresStopped), contract.FieldManager, true, false},
		{"also if a person has lifted its fence", without(without(dozes, contract.AnnotationPostgresStopped), contract.AnnotationFencedInstances), contract.FieldManager, true, false},
		{"a person's fence stays", dozes, "kubectl-cnpg", false, false},
		{"one that hibernates is the operator's", hibernates("DeletingPods", metav1.ConditionFalse), contract.FieldManager, false, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.fencer = row.fencer
				w.cluster(row.cluster)
				if waits := a.WakeForBackup(t.Context(), orders, "nightly"); waits != row.waits {
					t.Errorf("the Backup waits: %t", waits)
				}
				var want []string
				if row.wakes {
					want = []string{"patch Cluster"}
				}
				w.wantsWritten(row.rule, want...)
				if !row.wakes {
					return
				}
				annotations := w.cluster(nil).Annotations
				for _, key := range []string{contract.AnnotationFencedInstances, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped} {
					if value, left := annotations[key]; left {
						t.Errorf("%s is %q", key, value)
					}
				}
				wake, err := contract.ParseLastWake(annotations[contract.AnnotationLastWake])
				if err != nil || wake.By != "Backup nightly" || wake.Depth != contract.DepthDoze || time.Since(wake.At) > time.Minute {
					t.Errorf("the last wake is %+v, %v", wake, err)
				}
				if a.WakeForBackup(t.Context(), orders, "nightly") {
					t.Error("the Backup of a woken cluster waits")
				}
			})
		})
	}
}

func TestWakeForBackup_isObservedOnce(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		then func(*world) // a second after the wake
		want []string
	}{
		{"once PostgreSQL is ready", (*world).primaryReady, []string{"orders by backup from doze: success after 1s"}},
		{"if it does not get ready, once a client would have given up", func(*world) {}, []string{"orders by backup from doze: timeout after 5m0s"}},
		{"not of a cluster that is gone", func(w *world) {
			if err := w.api.Delete(w.t.Context(), w.cluster(nil)); err != nil {
				w.t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
				w.serves(false)
				w.cluster(dozes)
				for _, r := range []*replica{a, b} { // the operator asks anybody, and again
					r.read()
					r.WakeForBackup(t.Context(), orders, "nightly")
					r.read()
				}
				pass(t, time.Second)
				row.then(w)
				for range 3 {
					again := a.read()
					b.read()
					pass(t, again)
				}
				if diff := cmp.Diff(row.want, w.woken); diff != "" {
					t.Errorf("observed (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestWakeForBackup_knowsNoCluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		if a.WakeForBackup(t.Context(), types.NamespacedName{Namespace: "shop", Name: "gone"}, "nightly") {
			t.Error("the Backup of a cluster that is gone waits")
		}
		w.wantsWritten("nothing")
	})
}

var byBarman = cnpgv1.BackupSpec{
	Cluster: cnpgv1.LocalObjectReference{Name: orders.Name}, Method: cnpgv1.BackupMethodPlugin, Target: cnpgv1.BackupTargetPrimary,
	PluginConfiguration: &cnpgv1.BackupPluginConfiguration{Name: "barman", Parameters: map[string]string{"a": "b"}},
}

// backup makes a Backup, or changes one that was made just now.
func (w *world) backup(name string, phase cnpgv1.BackupPhase, change func(*cnpgv1.Backup)) {
	w.t.Helper()
	backup := &cnpgv1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: name}, Spec: *byBarman.DeepCopy()}
	if backup.Status.Phase = phase; change != nil {
		change(backup)
	}
	w.put(backup)
}

// backups returns the Backups that the plugin has made.
func (w *world) backups() (found []cnpgv1.Backup) {
	w.t.Helper()
	var list cnpgv1.BackupList
	if err := w.api.List(w.t.Context(), &list, client.MatchingLabels{contract.LabelManagedBy: contract.ManagedBy}); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// ages has the cluster sleep with a last Backup that is too old.
func (w *world) ages() {
	w.t.Helper()
	w.serves(false)
	w.cluster(func(c *cnpgv1.Cluster) {
		sleepsFor("on-connect", metav1.ConditionTrue, contract.Hibernated)(c)
		c.Spec.Plugins = append(c.Spec.Plugins, cnpgv1.PluginConfiguration{Name: byBarman.PluginConfiguration.Name})
		c.Annotations[contract.AnnotationAsleepSince] = time.Now().Add(-26 * time.Hour).Format(time.RFC3339)
		c.Annotations[contract.AnnotationBackupMaxAge] = "24h"
		c.CreationTimestamp = metav1.NewTime(time.Now().Add(-30 * 24 * time.Hour))
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: string(cnpgv1.ConditionBackup), Status: metav1.ConditionFalse})
	})
}

func completedAgo(hours time.Duration) func(*cnpgv1.Backup) {
	return func(b *cnpgv1.Backup) { b.Status.StoppedAt = &metav1.Time{Time: time.Now().Add(-hours * time.Hour)} }
}

// A cluster is woken because its last Backup is too old, and gets one more like it, whichever replica makes it.
func TestReconcile_makesABackupOfTheSameKind(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		other := func(of string, hours time.Duration) func(*cnpgv1.Backup) {
			return func(b *cnpgv1.Backup) {
				completedAgo(hours)(b)
				b.Spec.Cluster.Name, b.Spec.Method = of, cnpgv1.BackupMethodVolumeSnapshot
			}
		}
		w.backup("older", cnpgv1.BackupPhaseCompleted, other(orders.Name, 50))
		w.backup("other", cnpgv1.BackupPhaseCompleted, other("others", 1))
		w.backup("newer", cnpgv1.BackupPhaseCompleted, completedAgo(25))
		w.backup("failed", cnpgv1.BackupPhaseFailed, completedAgo(2))
		w.ages()
		a.read()
		wake, err := contract.ParseLastWake(w.cluster(nil).Annotations[contract.AnnotationLastWake])
		if err != nil || wake.Cause != contract.CauseBackup || wake.By != "backup-max-age" {
			t.Fatalf("the last wake is %+v, %v", wake, err)
		}
		if last := a.LastBackup(orders); time.Since(last).Round(time.Hour) != 25*time.Hour {
			t.Errorf("the last Backup was completed at %s", last)
		}
		a.read()
		w.primaryReady()
		for _, r := range []*replica{b, a} {
			r.read()
		}
		if made := w.backups(); len(made) != 0 {
			t.Errorf("%d Backups before the schedules can be resumed", len(made))
		}
		pass(t, 20*time.Second)
		for _, r := range []*replica{b, a, b} {
			r.read()
		}
		got := w.backups()
		if len(got) != 1 || got[0].Name != "orders-"+wake.At.Format("060102150405") || got[0].Labels["cnpg.io/cluster"] != orders.Name {
			t.Fatalf("the plugin made %+v", got)
		}
		if diff := cmp.Diff(byBarman, got[0].Spec); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if last := a.LastBackup(orders); !last.IsZero() {
			t.Errorf("awake, and the last Backup was completed at %s", last)
		}
	})
}

func TestReconcile_makesNoBackupBesideASchedules(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.backup("last", cnpgv1.BackupPhaseCompleted, completedAgo(25))
		w.ages()
		a.read()
		w.primaryReady()
		a.read()
		pass(t, 5*time.Second)
		w.backup("nightly", cnpgv1.BackupPhasePending, nil)
		pass(t, 20*time.Second)
		a.read()
		if made := w.backups(); len(made) != 0 {
			t.Fatalf("the plugin made %s beside the schedule's", made[0].Name)
		}
		w.backup("nightly", cnpgv1.BackupPhaseFailed, nil)
		a.read()
		if made := w.backups(); len(made) != 1 {
			t.Errorf("%d Backups although the schedule's has failed", len(made))
		}
	})
}

// A Backup or a Pooler that cannot be written keeps no cluster awake.
func TestReconcile_acknowledgesAlthoughItCannotWrite(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		refused string
		cluster func(*world)
	}{
		{"create Backup", func(w *world) {
			w.backup("last", cnpgv1.BackupPhaseCompleted, completedAgo(25))
			w.ages()
		}},
		{"patch Pooler", func(w *world) {
			w.put(&cnpgv1.Pooler{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: orders.Namespace, Name: "pool", Annotations: map[string]string{contract.AnnotationInstances: "3"},
				},
				Spec: cnpgv1.PoolerSpec{Cluster: cnpgv1.LocalObjectReference{Name: orders.Name}, Instances: new(int32)},
			})
		}},
	} {
		t.Run(row.refused, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				row.cluster(w)
				w.refused = row.refused
				look := func() error {
					_, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders})
					return err
				}
				_ = look()
				w.primaryReady()
				_ = look()
				pass(t, 20*time.Second)
				announcement := announced(20 * time.Second)
				w.cluster(annotated(contract.AnnotationAnnounced, announcement))
				if err := look(); err == nil || !strings.Contains(err.Error(), row.refused) {
					t.Errorf("the error is %v", err)
				}
				pass(t, 4*time.Second)
				if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != announcement {
					t.Errorf("acknowledged %q, want %q", got, announcement)
				}
			})
		})
	}
}

// A list of Backups that fails is tried again after minutes, and keeps nothing from being done.
func TestReconcile_listsTheBackupsLaterIfItCannot(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.backup("last", cnpgv1.BackupPhaseCompleted, completedAgo(25))
		w.ages()
		w.listless = true
		if again := a.read(); again != 5*time.Minute {
			t.Errorf("the next look is in %s", again)
		}
		pass(t, time.Minute)
		if again := a.read(); again != 4*time.Minute || w.listed != 1 {
			t.Errorf("the next look is in %s, after %d lists", again, w.listed)
		}
		w.listless = false
		pass(t, 4*time.Minute)
		if a.read(); w.cluster(nil).Annotations[contract.AnnotationLastWake] == "" {
			t.Error("the cluster was not woken")
		}
	})
}
