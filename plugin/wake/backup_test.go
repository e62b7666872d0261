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
