package wake

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestTendRestart(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	failed := func(change func(*cnpgv1.Cluster)) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationRestartFailed], c.Status.CurrentPrimary = "orders-1", "orders-1"
			change(c)
		}
	}
	nothing := func(*cnpgv1.Cluster) {}
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		pod     func(*corev1.Pod)
		answer  error // of PostgreSQL's port; nil: somebody listens
		deleted bool
	}{
		{"the pod in which PostgreSQL was not started is deleted", failed(nothing), same, refused, true},
		{"also where a person has ended the doze", failed(func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationDozingSince], c.Annotations[contract.AnnotationPostgresStopped] = time.Now().Format(time.RFC3339), "orders-1"
		}), same, refused, true},
		{"and where the plugin is not listed any more", failed(func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }), same, refused, true},
		{"not the one that was made instead", failed(func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationRestartFailed] = "before" }), same, refused, false},
		{"nor one that is no primary", failed(func(c *cnpgv1.Cluster) { c.Status.CurrentPrimary = "orders-2" }), same, refused, false},
		{"nor one of a pooler", failed(nothing), func(p *corev1.Pod) { p.Labels["cnpg.io/podRole"] = "pooler" }, refused, false},
		{"nor one that is being deleted", failed(nothing), func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} }, refused, false},
		{"nor one in which somebody listens", failed(nothing), same, nil, false},
		{"nor one that does not answer", failed(nothing), same, context.DeadlineExceeded, false},
		{"nor where nobody says so", func(c *cnpgv1.Cluster) { c.Status.CurrentPrimary = "orders-1" }, same, refused, false},
		{"nor while it dozes", failed(dozes), same, refused, false},
		{"nor while a person has fenced it", failed(func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationFencedInstances] = `["orders-1"]` }), same, refused, false},
		{"nor while it hibernates", failed(func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationHibernation] = "on" }), same, refused, false},
		{"nor while the operator is told to keep off, since it would make no other", failed(func(c *cnpgv1.Cluster) {
			c.Annotations["cnpg.io/reconciliationLoop"] = "disabled"
		}), same, refused, false},
		{"nor while volumes are at risk", failed(func(c *cnpgv1.Cluster) {
			c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: true, ReusePVC: ptr.To(false)}
		}), same, refused, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				a.dial = func(_ context.Context, address string) (net.Conn, error) {
					if address != "10.0.0.1:5432" {
						return nil, errors.New("nobody is there")
					}
					here, there := net.Pipe()
					_ = there.Close()
					return here, row.answer
				}
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"}, OwnerReferences: ofOrders},
					Status:     corev1.PodStatus{PodIP: "10.0.0.1"},
				}
				row.pod(pod)
				w.put(pod)
				if len(pod.Finalizers) != 0 {
					if err := w.api.Delete(t.Context(), pod); err != nil {
						t.Fatal(err)
					}
				}
				w.cluster(row.cluster)
				a.read()
				if deleted := slices.Contains(w.wrote(), "delete Pod"); deleted != row.deleted {
					t.Errorf("the pod is deleted: %t", deleted)
				}
			})
		})
	}
}

// The informers may be late, and a PostgreSQL that serves since must not be stopped.
func TestTendRestart_asksTheAPIServerBeforeItDeletes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		a.dial = func(context.Context, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
		w.put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"}, OwnerReferences: ofOrders},
			Status:     corev1.PodStatus{PodIP: "10.0.0.1"},
		})
		w.cluster(func(c *cnpgv1.Cluster) {
			c.Annotations[contract.AnnotationRestartFailed], c.Status.CurrentPrimary = "orders-1", "orders-1"
		})
		a.APIReader = newer{w.api, func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationRestartFailed) }}
		a.read()
		w.wantsWritten("it serves by now")
		a.APIReader = w.api
		a.read()
		w.wantsWritten("it is deleted where the API server knows of nothing else", "delete Pod")
	})
}
