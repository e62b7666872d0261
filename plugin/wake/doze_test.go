package wake

import (
	"context"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// dozes makes the cluster one whose PostgreSQL was stopped.
func dozes(c *cnpgv1.Cluster) {
	for _, key := range []string{contract.AnnotationAnnounced, contract.AnnotationGatewayReady, contract.AnnotationGatewayHolding} {
		delete(c.Annotations, key)
	}
	c.Annotations[contract.AnnotationFencedInstances] = contract.FencedInstancesAll
	c.Annotations[contract.AnnotationDozingSince] = time.Now().Format(time.RFC3339)
	c.Annotations[contract.AnnotationPostgresStopped] = "pod-uid"
}

// wakes makes it one that a client has woken.
func wakes(c *cnpgv1.Cluster) {
	for _, key := range []string{contract.AnnotationFencedInstances, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped} {
		delete(c.Annotations, key)
	}
}

// serves says whether the pod is ready, and so whether the Services lead to it.
func (w *world) serves(ready bool) {
	w.t.Helper()
	w.endpoint("orders-rw", ready)
	w.endpoint("orders-r", ready)
}

// acknowledges announces a doze and acknowledges it.
func (w *world) acknowledges(a *replica) string {
	w.t.Helper()
	announcement := announced(25*time.Second) + " doze"
	w.cluster(annotated(contract.AnnotationAnnounced, announcement))
	a.read()
	pass(w.t, 2500*time.Millisecond)
	if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != announcement {
		w.t.Fatalf("acknowledged %q, want %q", got, announcement)
	}
	w.wrote()
	return announcement
}

func TestADozeOfACluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(true)
		announcement := w.acknowledges(a)
		a.read()
		w.wantsWritten("nobody is held for while the Services lead to the pod")
		w.endpoint("orders-rw", false)
		a.read()
		w.endpoint("orders-r", false)
		if again := a.read(); again != 2*time.Second {
			t.Errorf("the next look is in %s, want when other nodes know", again)
		}
		pass(t, 2*time.Second)
		a.read()
		w.wantsWritten("then everybody is held", "patch Cluster")
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayHolding]; got != announcement {
			t.Errorf("held for %q, want %q", got, announcement)
		}
		a.read()
		w.wantsWritten("that is said once")

		w.cluster(dozes)
		if again := a.read(); again != 0 {
			t.Errorf("a dozing cluster is looked at again in %s", again)
		}
		pass(t, 2*time.Hour)
		a.read()
		w.wants("a dozing cluster's Services lead here", toA)

		w.cluster(wakes)
		a.read()
		w.wants("a woken one's do until they are ready", toA)
		w.serves(true)
		if again := a.read(); again != 16*time.Second {
			t.Errorf("the next look is in %s, want when they have been for long enough", again)
		}
		pass(t, 15*time.Second)
		w.serves(false)
		a.read()
		pass(t, time.Second)
		w.serves(true)
		a.read()
		pass(t, 15*time.Second)
		a.read()
		w.wants("a break keeps them", toA)
		pass(t, time.Second)
		a.read()
		w.wants("then nothing of ours is left", nowhere)
		pass(t, drainDelay)
		if again := a.read(); again != 0 || len(a.network.open()) != 0 {
			t.Errorf("%d listeners are left, the next look in %s", len(a.network.open()), again)
		}
		w.serves(false)
		a.read()
		w.wants("what becomes unready later is not led here", nowhere)
	})
}

// The probe that fails while the pod's readiness is withdrawn may be told of only after the attempt has been given up.
func TestAnAttemptToDoze_keepsTheServicesUntilTheProbesAreKnown(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(true)
		w.acknowledges(a)
		a.read()
		w.cluster(func(c *cnpgv1.Cluster) {
			delete(c.Annotations, contract.AnnotationAnnounced)
			delete(c.Annotations, contract.AnnotationGatewayReady)
		})
		if again := a.read(); again != 16*time.Second {
			t.Errorf("the next look is in %s, want when the Services have been ready for long enough", again)
		}
		w.wants("the pod may become unready yet", toA)
		pass(t, time.Second)
		w.serves(false)
		a.read()
		w.wants("it does", toA)
		pass(t, time.Second)
		w.serves(true)
		a.read()
		pass(t, 16*time.Second)
		a.read()
		w.wants("then nothing of ours is left", nowhere)
	})
}

func TestHold_startsAnewWhenAServiceLeadsPastTheGateway(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.serves(true)
		w.acknowledges(a)
		w.serves(false)
		a.read()
		pass(t, time.Second)
		w.serves(true)
		a.read()
		pass(t, time.Second)
		w.serves(false)
		a.read()
		pass(t, time.Second)
		a.read()
		w.wantsWritten("not yet")
		pass(t, time.Second)
		a.read()
		w.wantsWritten("now", "patch Cluster")
	})
}

// The operator's Service -any leads to instances that are not ready, too. Another one like it keeps the cluster from dozing.
func TestHold_needsEveryServiceThatClientsUse(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.exposed("mine", func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })
		w.endpoint("orders-any", true)
		w.endpoint("mine", true)
		w.serves(true)
		w.acknowledges(a)
		w.serves(false)
		a.read()
		pass(t, 5*time.Second)
		a.read()
		w.wantsWritten("a Service leads to the instance")
		w.put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "mine", UID: "mine"}}) // it selects nobody now
		a.read()
		pass(t, 2*time.Second)
		w.wrote()
		a.read()
		w.wantsWritten("only -any does", "patch Cluster")
	})
}

// hibernates has the operator say that of a dozing cluster's hibernation.
func hibernates(reason string, status metav1.ConditionStatus) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		dozes(c)
		c.Annotations[contract.AnnotationHibernation] = "on"
		c.Status.Conditions = []metav1.Condition{{Type: contract.AnnotationHibernation, Status: status, Reason: reason}}
	}
}

func TestTendFenced(t *testing.T) {
	t.Parallel()
	deleting := hibernates("DeletingPods", metav1.ConditionFalse)
	hibernated := hibernates("Hibernated", metav1.ConditionTrue)
	also := func(changes ...func(*cnpgv1.Cluster)) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			for _, change := range changes {
				change(c)
			}
		}
	}
	for _, row := range []struct {
		rule            string
		cluster         func(*cnpgv1.Cluster)
		manager, fencer string
		deleted         bool
		fenced          bool
	}{
		{"the operator deletes no fenced pod: the plugin does", deleting, contract.FieldManager, contract.FieldManager, true, true},
		{"also if a person hibernates it", deleting, "kubectl", contract.FieldManager, true, true},
		{"not if a person has fenced it", deleting, contract.FieldManager, "kubectl-cnpg", false, true},
		{"nor before the operator wants it", hibernates("WaitingForHealthy", metav1.ConditionFalse), contract.FieldManager, contract.FieldManager, false, true},
		{"nor while it only dozes", also(deleting, func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationHibernation) }), "", contract.FieldManager, false, true},
		{"nor while volumes are at risk", also(deleting, func(c *cnpgv1.Cluster) {
			c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: true, ReusePVC: ptr.To(false)}
		}), contract.FieldManager, contract.FieldManager, false, true},
		{"also where the plugin is not listed any more", also(deleting, func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }), contract.FieldManager, contract.FieldManager, true, true},
		{"a dozing cluster stays fenced", dozes, "", contract.FieldManager, false, true},
		{"unless it lists the plugin no longer, whose sidecar has no rights then", also(dozes, func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }), "", contract.FieldManager, false, false},
		{"once hibernated it is fenced no longer", hibernated, contract.FieldManager, contract.FieldManager, false, false},
		{"also if a person hibernates it", hibernated, "kubectl", contract.FieldManager, false, false},
		{"unless the fence is a person's", hibernated, contract.FieldManager, "kubectl-cnpg", false, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.manager, w.fencer = row.manager, row.fencer
				for name, role := range map[string]string{"orders-1": "instance", "orders-pooler": "pooler"} {
					w.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
						Namespace: orders.Namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": role}, OwnerReferences: ofOrders,
					}})
				}
				w.cluster(row.cluster)
				a.read()
				var pods corev1.PodList
				if err := w.api.List(t.Context(), &pods, client.InNamespace(orders.Namespace)); err != nil {
					t.Fatal(err)
				}
				if deleted := len(pods.Items) == 1 && pods.Items[0].Name == "orders-pooler"; deleted != row.deleted {
					t.Errorf("the instance is deleted: %t; %d pods are left", deleted, len(pods.Items))
				}
				left := map[string]bool{}
				annotations := w.cluster(nil).Annotations
				for _, key := range []string{contract.AnnotationFencedInstances, contract.AnnotationDozingSince, contract.AnnotationPostgresStopped} {
					_, left[key] = annotations[key]
				}
				want := map[string]bool{contract.AnnotationFencedInstances: row.fenced, contract.AnnotationDozingSince: row.fenced, contract.AnnotationPostgresStopped: row.fenced}
				if diff := cmp.Diff(want, left); diff != "" {
					t.Errorf("what is left of the doze (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestTendFenced_holdsTheClientsOfAPostgreSQLThatMayStillStop(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.manager = "kubectl"
		w.cluster(hibernates("WaitingForHealthy", metav1.ConditionFalse))
		w.cluster(func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationPostgresStopped) })
		a.read()
		c := w.cluster(func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationHibernation) })
		if _, fenced := c.Annotations[contract.AnnotationFencedInstances]; fenced || !plan.View(c, time.Now()).MayStillStop {
			t.Errorf("fenced: %t, annotations %v", fenced, c.Annotations)
		}
	})
}

// newer is an API server that knows of a change that the informers have not told of.
type newer struct {
	client.Reader
	change func(*cnpgv1.Cluster)
}

func (n newer) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := n.Reader.Get(ctx, key, o, options...)
	if cluster, ok := o.(*cnpgv1.Cluster); ok {
		n.change(cluster)
	}
	return err
}

func TestTendFenced_asksTheAPIServerBeforeItDeletes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"}, OwnerReferences: ofOrders,
		}})
		w.cluster(hibernates("DeletingPods", metav1.ConditionFalse))
		a.APIReader = newer{w.api, func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationHibernation) }}
		a.read()
		for _, wrote := range w.wrote() {
			if wrote == "delete Pod" {
				t.Error("the instance of a woken cluster is deleted")
			}
		}
		a.APIReader = w.api
		a.read()
		w.wantsWritten("it is deleted where the API server knows of nothing else", "delete Pod")
	})
}
