package wake

import (
	"encoding/json"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// The operator calls while a cluster falls asleep, dozes and is woken.
func TestEndLoop_followsADoze(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		instance := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: orders.Namespace, Name: "orders-1", OwnerReferences: ofOrders,
				Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}
		w.put(instance)
		serving := w.cluster(func(c *cnpgv1.Cluster) {
			c.Status.Phase, c.Status.Instances = cnpgv1.PhaseHealthy, 1
			c.Status.CurrentPrimary, c.Status.TargetPrimary, c.Status.CommitHash = instance.Name, instance.Name, "a1"
		})
		ends := func(r *replica) bool {
			t.Helper()
			definition, err := json.Marshal(w.cluster(nil))
			if err != nil {
				t.Fatal(err)
			}
			after := r.EndLoop(t.Context(), orders, definition)
			if after != 0 && (after < 30*time.Second || after > time.Minute) {
				t.Errorf("it is reconciled again after %s", after)
			}
			return after != 0
		}
		wants := func(rule string, want bool) {
			t.Helper()
			a.clusterChanged(t.Context(), w.cluster(nil))
			if ends(a) != want {
				t.Errorf("%s: the loop ends: %t", rule, !want)
			}
		}
		wants("awake", false)
		w.cluster(dozes)
		w.cluster(annotated(contract.AnnotationPostgresStopped, ""))
		wants("stopping", false)
		w.cluster(annotated(contract.AnnotationPostgresStopped, string(instance.UID)))
		wants("dozing", true)
		b := w.replica("b", "10.1.0.2")
		if ends(b) {
			t.Error("a replica that does not know the cluster yet ends the loop")
		}
		if b.clusterChanged(t.Context(), w.cluster(nil)); !ends(b) {
			t.Error("a replica that was started during the doze does not end the loop")
		}
		if stale, err := json.Marshal(serving); err != nil || a.EndLoop(t.Context(), orders, stale) != 0 {
			t.Errorf("the operator has not seen the fence, and its loop ends (error %v)", err)
		}
		if a.EndLoop(t.Context(), orders, []byte(`{`)) != 0 {
			t.Error("a definition that cannot be read ends the loop")
		}
		if a.EndLoop(t.Context(), types.NamespacedName{Namespace: "shop", Name: "gone"}, []byte(`{}`)) != 0 {
			t.Error("that of a cluster that is gone ends")
		}
		w.cluster(func(c *cnpgv1.Cluster) { c.Generation++ })
		wants("changed", false)
		w.cluster(func(c *cnpgv1.Cluster) { c.Generation-- })
		wants("as it was", true)
		w.cluster(wakes)
		wants("woken", false)
	})
}
