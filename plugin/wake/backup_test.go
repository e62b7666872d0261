package wake

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		{"once PostgreSQL is ready", func(w *world) { w.serves(true) }, []string{"orders by backup from doze: success after 1s"}},
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

// A cluster is woken because its last Backup is too old, and gets one more like it, whichever replica makes it.
func TestReconcile_makesABackupOfTheSameKind(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		kind := cnpgv1.BackupSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: orders.Name}, Method: cnpgv1.BackupMethodPlugin, Target: cnpgv1.BackupTargetPrimary,
			PluginConfiguration: &cnpgv1.BackupPluginConfiguration{Name: "barman", Parameters: map[string]string{"a": "b"}},
		}
		for name, of := range map[string]string{"older": orders.Name, "other": "others", "newer": orders.Name, "failed": orders.Name} {
			backup := &cnpgv1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: name}, Spec: *kind.DeepCopy()}
			backup.Spec.Cluster.Name = of
			backup.Status.Phase = cnpgv1.BackupPhaseCompleted
			hours := map[string]time.Duration{"older": 50, "other": 1, "newer": 25, "failed": 2}[name]
			backup.Status.StoppedAt = &metav1.Time{Time: time.Now().Add(-hours * time.Hour)}
			switch name {
			case "older", "other":
				backup.Spec.Method = cnpgv1.BackupMethodVolumeSnapshot
			case "failed":
				backup.Status.Phase = cnpgv1.BackupPhaseFailed
			}
			w.put(backup)
		}
		w.serves(false)
		w.cluster(func(c *cnpgv1.Cluster) {
			sleepsFor("on-connect", metav1.ConditionTrue, contract.Hibernated)(c)
			c.Annotations[contract.AnnotationAsleepSince] = time.Now().Add(-26 * time.Hour).Format(time.RFC3339)
			c.Annotations[contract.AnnotationBackupMaxAge] = "24h"
			c.CreationTimestamp = metav1.NewTime(time.Now().Add(-30 * 24 * time.Hour))
			c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: string(cnpgv1.ConditionBackup), Status: metav1.ConditionFalse})
		})
		a.read()
		wake, err := contract.ParseLastWake(w.cluster(nil).Annotations[contract.AnnotationLastWake])
		if err != nil || wake.Cause != contract.CauseBackup || wake.By != "backup-max-age" {
			t.Fatalf("the last wake is %+v, %v", wake, err)
		}
		if last := a.LastBackup(orders); time.Since(last).Round(time.Hour) != 25*time.Hour {
			t.Errorf("the last Backup was completed at %s", last)
		}
		a.read()
		w.serves(true)
		b.read()
		a.read()
		b.read()
		var list cnpgv1.BackupList
		if err := w.api.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		var got []cnpgv1.Backup
		for i := range list.Items {
			if list.Items[i].Name == "orders-"+wake.At.Format("060102150405") {
				got = append(got, list.Items[i])
			}
		}
		if len(got) != 1 || len(list.Items) != 5 || got[0].Labels["cnpg.io/cluster"] != orders.Name {
			t.Fatalf("%d Backups, of which the plugin made %+v", len(list.Items), got)
		}
		if diff := cmp.Diff(kind, got[0].Spec); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if last := a.LastBackup(orders); !last.IsZero() {
			t.Errorf("awake, and the last Backup was completed at %s", last)
		}
	})
}
