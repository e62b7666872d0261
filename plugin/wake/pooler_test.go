package wake

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// pooled gives the cluster a Pooler of three instances with its Service, and one that a person has made for it.
func (w *world) pooled(change func(*corev1.Service)) {
	w.t.Helper()
	w.put(&cnpgv1.Pooler{
		ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "pool"},
		Spec: cnpgv1.PoolerSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: orders.Name}, Type: cnpgv1.PoolerTypeRW, Instances: ptr.To(int32(3)),
		},
	})
	for _, name := range []string{"pool", "pool-own"} {
		w.exposed(name, func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"cnpg.io/poolerName": "pool"}
			s.Spec.Ports[0].TargetPort = intstr.FromString("pgbouncer")
			if name == "pool-own" {
				change(s)
			}
		})
		w.endpoint(name, true, "10.0.0.9")
	}
}

// wantsInstances says how many instances the Pooler is to have, and its mark.
func (w *world) wantsInstances(rule string, instances int32, mark string) {
	w.t.Helper()
	var pooler cnpgv1.Pooler
	if err := w.api.Get(w.t.Context(), client.ObjectKey{Namespace: orders.Namespace, Name: "pool"}, &pooler); err != nil {
		w.t.Fatal(err)
	}
	if got := pooler.Annotations[contract.AnnotationInstances]; *pooler.Spec.Instances != instances || got != mark {
		w.t.Errorf("%s: %d instances, marked %q", rule, *pooler.Spec.Instances, got)
	}
}

func TestPoolers_sleepAndWakeWithTheirCluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.pooled(func(*corev1.Service) {})
		w.cluster(func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationPoolers] = contract.PoolersSleep
			c.Annotations[contract.AnnotationAnnounced] = announced(20 * time.Second)
		})
		a.read()
		w.wants("before the sleep", map[string][]string{"a": {"orders-r", "orders-rw"}})
		w.cluster(func(c *cnpgv1.Cluster) {
			delete(c.Annotations, contract.AnnotationAnnounced)
			c.Annotations[contract.AnnotationHibernation] = "on"
		})
		a.read()
		led := map[string][]string{"a": {"orders-r", "orders-rw", "pool", "pool-own"}}
		w.wants("asleep", led)
		w.wantsInstances("before every node knows", 3, "")
		pass(t, 4*time.Second)
		a.read()
		w.wantsInstances("asleep", 0, "3")
		asleep := annotated(contract.AnnotationHibernation, "on")
		w.cluster(annotated(contract.AnnotationHibernation, ""))
		a.APIReader = newer{w.api, func(c *cnpgv1.Cluster) { asleep(c); c.ResourceVersion += "0" }}
		a.read()
		w.wantsInstances("asleep, as far as other replicas know", 0, "3")
		a.APIReader = w.api
		w.cluster(asleep)
		w.endpoint("pool", false)
		w.endpoint("pool-own", false)
		a.read()
		w.cluster(annotated(contract.AnnotationHibernation, ""))
		w.serves(false)
		a.read()
		w.wantsInstances("woken", 3, "")
		w.wants("woken", led)
		for _, ready := range []bool{true, false} {
			w.endpoint("pool", ready, "10.0.0.9")
			w.endpoint("pool-own", ready, "10.0.0.9")
			a.read()
			w.wants("with PgBouncer alone", led)
		}
		w.serves(true)
		a.read()
		w.wants("with PostgreSQL", map[string][]string{"a": {"pool", "pool-own"}})
		w.endpoint("pool", true, "10.0.0.9")
		w.endpoint("pool-own", true, "10.0.0.9")
		a.read()
		w.wants("with PgBouncer", map[string][]string{})
	})
}

func TestPoolers_keepTheirInstances(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*corev1.Service)
	}{
		{"if a Service of it cannot lead to the gateway", func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}},
		{"if it is not said by name that a Service is of it", func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{"cnpg.io/podRole": "pooler"}
			s.Spec.Ports[0].TargetPort = intstr.FromInt32(contract.PostgresPort)
		}},
		{"if the gateway has no address of a Service's family", func(s *corev1.Service) {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPv6Protocol)
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.pooled(row.change)
				w.cluster(func(c *cnpgv1.Cluster) {
					c.Annotations[contract.AnnotationPoolers] = contract.PoolersSleep
					c.Annotations[contract.AnnotationHibernation] = "on"
				})
				a.read()
				pass(t, 4*time.Second)
				a.read()
				w.wantsInstances(row.rule, 3, "")
				if unroutable := w.cluster(nil).Annotations[contract.AnnotationUnroutableServices]; unroutable != "" {
					t.Errorf("the cluster is kept awake: %s", unroutable)
				}
			})
		})
	}
}

func TestPoolers_ofAGoneClusterHaveTheirInstancesAgain(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.pooled(func(*corev1.Service) {})
		w.cluster(func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationPoolers] = contract.PoolersSleep
			c.Annotations[contract.AnnotationHibernation] = "on"
		})
		a.read()
		pass(t, 4*time.Second)
		a.read()
		w.wantsInstances("asleep", 0, "3")
		if err := w.api.Delete(t.Context(), w.cluster(nil)); err != nil {
			t.Fatal(err)
		}
		a.read()
		w.wantsInstances("gone", 3, "")
	})
}

func TestPoolers_aPersonsChangeStands(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.pooled(func(*corev1.Service) {})
		w.cluster(func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationPoolers] = contract.PoolersSleep
			c.Annotations[contract.AnnotationHibernation] = "on"
		})
		a.read()
		pass(t, 4*time.Second)
		a.read()
		w.wantsInstances("asleep", 0, "3")
		w.scaler = "kubectl-scale"
		person := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"instances":1}}`))
		pooler := &cnpgv1.Pooler{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "pool"}}
		if err := w.api.Patch(t.Context(), pooler, person); err != nil {
			t.Fatal(err)
		}
		a.read()
		w.wantsInstances("during the sleep", 1, "3")
		w.cluster(annotated(contract.AnnotationHibernation, ""))
		a.read()
		w.wantsInstances("awake", 1, "")
	})
}
