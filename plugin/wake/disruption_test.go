package wake

import (
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// node makes a node, or changes whether it is cordoned.
func (w *world) node(name string, cordoned bool) *corev1.Node {
	w.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	w.put(node)
	return node
}

// instance places the cluster's instance on a node.
func (w *world) instance(node string) {
	w.t.Helper()
	w.put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"}, OwnerReferences: ofOrders,
		},
		Spec: corev1.PodSpec{NodeName: node},
	})
}

func TestLeaveNode(t *testing.T) {
	t.Parallel()
	requested := func(ago time.Duration) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			dozes(c)
			c.Annotations[contract.AnnotationSleepRequested] = time.Now().Add(-ago).Format(time.RFC3339)
		}
	}
	for _, row := range []struct {
		rule     string
		cluster  func(*cnpgv1.Cluster)
		fencer   string
		cordoned bool
		on       string
		want     bool
	}{
		{"a dozing cluster whose node is cordoned is to hibernate", dozes, contract.FieldManager, true, "n", true},
		{"not on a node that is not", dozes, contract.FieldManager, false, "n", false},
		{"nor on another one", dozes, contract.FieldManager, true, "m", false},
		{"nor one that is not placed", dozes, contract.FieldManager, true, "", false},
		{"nor an awake cluster, which somebody may use", wakes, contract.FieldManager, true, "n", false},
		{"nor one that a person has fenced", dozes, "kubectl-cnpg", true, "n", false},
		{"nor one that hibernates already", hibernates("WaitingForHealthy", metav1.ConditionFalse), contract.FieldManager, true, "n", false},
		{"nor one that was requested to since it dozes", requested(0), contract.FieldManager, true, "n", false},
		{"a request from before the doze counts no longer", requested(time.Minute), contract.FieldManager, true, "n", true},
		{"not while volumes are at risk", func(c *cnpgv1.Cluster) {
			dozes(c)
			c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: true, ReusePVC: ptr.To(false)}
		}, contract.FieldManager, true, "n", false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.fencer = row.fencer
				w.node("n", row.cordoned)
				w.instance(row.on)
				w.cluster(row.cluster)
				before := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]
				a.read()
				after := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]
				if (after != before) != row.want {
					t.Errorf("requested at %q, before at %q", after, before)
				}
				told := 0
				for _, e := range w.events() {
					if e.Reason == "HibernationRequested" && strings.HasSuffix(e.Message, "Node n: the node is cordoned") {
						told++
					}
				}
				if (told == 1) != row.want {
					t.Errorf("told %d times: %v", told, w.events())
				}
				a.read()
				if again := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]; again != after {
					t.Errorf("requested again at %q", again)
				}
			})
		})
	}
}

func TestReconcileDisruption_hibernatesForChangedPasswords(t *testing.T) {
	t.Parallel()
	rotated := func(c *cnpgv1.Cluster) { c.Status.SecretsResourceVersion.ApplicationSecretVersion += "1" }
	hibernated := func(c *cnpgv1.Cluster) { hibernates("Hibernated", metav1.ConditionTrue)(c) }
	for _, row := range []struct {
		rule   string
		states []func(*cnpgv1.Cluster)
		want   bool
	}{
		{"a Secret that changes during the doze is a reason", []func(*cnpgv1.Cluster){wakes, dozes, rotated}, true},
		{"one that does not is none", []func(*cnpgv1.Cluster){rotated, dozes, func(*cnpgv1.Cluster) {}}, false},
		{"one that changes while the cluster is awake is none", []func(*cnpgv1.Cluster){wakes, rotated, dozes}, false},
		{"one that may have changed before this replica was started is none", []func(*cnpgv1.Cluster){dozes, rotated}, false},
		{"a change that a wake has not waited for is applied by the next doze", []func(*cnpgv1.Cluster){wakes, hibernated, rotated, wakes, awake, dozes}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				for _, change := range row.states {
					w.cluster(change)
					a.stopping.Note(w.cluster(nil), time.Now())
				}
				a.read()
				requested := w.cluster(nil).Annotations[contract.AnnotationSleepRequested] != ""
				told := slices.ContainsFunc(w.events(), func(e corev1.Event) bool {
					return e.Reason == "HibernationRequested" && e.Message == "Hibernating the dozing cluster, because a password has changed, which is to be set before the next client is served"
				})
				if requested != row.want || told != row.want {
					t.Errorf("requested: %t, told: %t", requested, told)
				}
			})
		})
	}
}

// The sidecar takes a request from before the doze for an old one, by its own clock.
func TestLeaveNode_waitsForASidecarWhoseClockIsAhead(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.node("n", true)
		w.instance("n")
		since := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339)
		w.cluster(func(c *cnpgv1.Cluster) { dozes(c); c.Annotations[contract.AnnotationDozingSince] = since })
		again := a.read()
		if requested := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]; requested != "" {
			t.Errorf("requested at %s, before it dozed", requested)
		}
		pass(t, again)
		a.read()
		if requested := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]; requested < since {
			t.Errorf("requested at %q, and it dozes since %s", requested, since)
		}
	})
}

func TestLeaveNode_repeatsARequestThatMeansNothingAnyMore(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.node("n", true)
		w.instance("n")
		w.cluster(dozes)
		a.read()
		first := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]
		if again := a.read(); again <= 0 || again > contract.MaxRequestAge {
			t.Errorf("looked at again in %s", again)
		}
		pass(t, contract.MaxRequestAge+time.Second)
		a.read()
		if second := w.cluster(nil).Annotations[contract.AnnotationSleepRequested]; second <= first {
			t.Errorf("requested at %q, and then at %q", first, second)
		}
		told := 0
		for _, e := range w.events() {
			if e.Reason == "HibernationRequested" {
				told++
			}
		}
		if told != 1 {
			t.Errorf("told %d times of one doze", told)
		}
	})
}

func TestLeaveNode_tellsLaterWhatCouldNotBeTold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.node("n", true)
		w.instance("n")
		w.cluster(dozes)
		w.eventless = true
		if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
			t.Error("an Event that cannot be written is no failure")
		}
		if w.cluster(nil).Annotations[contract.AnnotationSleepRequested] == "" {
			t.Error("an Event that cannot be written keeps the cluster from hibernating")
		}
		w.eventless = false
		w.cluster(hibernates("DeletingPods", metav1.ConditionFalse)) // the sidecar is fast
		a.read()
		if told := w.events(); len(told) != 1 || told[0].Reason != "HibernationRequested" {
			t.Errorf("told %v", told)
		}
		w.wrote()
		a.read()
		w.wantsWritten("it is told once")
	})
}

func TestOnNode(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.instance("n")
		for _, row := range []struct {
			rule    string
			cluster func(*cnpgv1.Cluster)
			node    *corev1.Node
			want    int
		}{
			{"a dozing cluster's node is cordoned", dozes, w.node("n", true), 1},
			{"it is not any more", dozes, w.node("n", false), 0},
			{"another one is", dozes, w.node("m", true), 0},
			{"nobody dozes there", wakes, w.node("n", true), 0},
		} {
			w.cluster(row.cluster)
			if got := a.onNode(t.Context(), row.node); len(got) != row.want {
				t.Errorf("%s: %v", row.rule, got)
			}
		}
	})
	spec := corev1.NodeSpec{Unschedulable: true}
	for _, row := range []struct {
		rule          string
		before, after corev1.Node
		want          bool
	}{
		{"a node is cordoned", corev1.Node{}, corev1.Node{Spec: spec}, true},
		{"only its status changes", corev1.Node{Spec: spec}, corev1.Node{Spec: spec, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "8"}}, false},
	} {
		if got := nodeSpecChanges().Update(event.UpdateEvent{ObjectOld: &row.before, ObjectNew: &row.after}); got != row.want {
			t.Errorf("%s: %t", row.rule, got)
		}
	}
}
