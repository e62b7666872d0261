package wake

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// stops makes the cluster one that was fenced, and of which no sidecar says that PostgreSQL has stopped.
func stops(c *cnpgv1.Cluster) {
	dozes(c)
	delete(c.Annotations, contract.AnnotationPostgresStopped)
}

// lifted makes it one whose fence a person has lifted since.
func lifted(c *cnpgv1.Cluster) {
	stops(c)
	delete(c.Annotations, contract.AnnotationFencedInstances)
}

func TestTendStop(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	unlisted := func(c *cnpgv1.Cluster) { stops(c); c.Spec.Plugins = nil }
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		pod     func(*corev1.Pod) // nil: there is none
		answer  error             // of PostgreSQL's port; nil: somebody listens
		after   time.Duration
		stopped string
		marked  bool
	}{
		{"who refuses has stopped", stops, same, refused, 31 * time.Second, "orders-1", true},
		{"not before its sidecar had time to say so", stops, same, refused, 30 * time.Second, "", true},
		{"nor if somebody listens, however long", stops, same, nil, time.Hour, "", true},
		{"nor if nothing answers", stops, same, context.DeadlineExceeded, time.Hour, "", true},
		{"nor if the kubelet calls PostgreSQL ready", stops, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = true }, refused, time.Hour, "", true},
		{"nor if the pod has no address", stops, func(p *corev1.Pod) { p.Status.PodIP = "" }, refused, time.Hour, "", true},
		{"a pod that is being deleted counts", stops, func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} }, nil, time.Hour, "", true},
		{"one that has ended does not", stops, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, nil, 31 * time.Second, "none", true},
		{"where there is no pod nothing runs", stops, nil, nil, 31 * time.Second, "none", true},
		{"the fence of a cluster that lists the plugin no longer is lifted then", unlisted, same, refused, 31 * time.Second, "", false},
		{"not before", unlisted, same, nil, time.Hour, "", true},
		{"where a person has lifted the fence, who refuses has stopped, too", lifted, same, refused, 31 * time.Second, "orders-1", true},
		{"who listens may yet stop", lifted, same, nil, 119 * time.Second, "", true},
		{"and then is taken to stay", lifted, same, nil, 120 * time.Second, "", false},
		{"a fence that nobody obeys is lifted, and then settled", stops, func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = true }, nil, 5 * time.Minute, "", false},
		{"a person's fence is nobody's to judge", func(c *cnpgv1.Cluster) { stops(c); c.Annotations[contract.AnnotationFencedInstances] = `["orders-1"]` }, same, refused, time.Hour, "", true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				dial := a.dial
				a.dial = func(ctx context.Context, address string) (net.Conn, error) {
					if address != "10.0.0.1:5432" {
						return dial(ctx, address)
					}
					here, there := net.Pipe()
					_ = there.Close()
					return here, row.answer
				}
				if row.pod != nil {
					pod := &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "orders-1", UID: "orders-1", Labels: map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/podRole": "instance"}, OwnerReferences: ofOrders},
						Status:     corev1.PodStatus{PodIP: "10.0.0.1", ContainerStatuses: []corev1.ContainerStatus{{Name: contract.PostgresContainer}}},
					}
					row.pod(pod)
					w.put(pod)
					if len(pod.Finalizers) != 0 {
						if err := w.api.Delete(t.Context(), pod); err != nil {
							t.Fatal(err)
						}
					}
				}
				w.cluster(row.cluster)
				for end := time.Now().Add(row.after); ; {
					again := a.read()
					if left := time.Until(end); again == 0 || again > left {
						break
					}
					pass(t, again)
				}
				a.read() // what the last one wrote
				annotations := w.cluster(nil).Annotations
				_, marked := annotations[contract.AnnotationDozingSince]
				if stopped := annotations[contract.AnnotationPostgresStopped]; stopped != row.stopped || marked != row.marked {
					t.Errorf("stopped: %q, marked: %t, want %q and %t", stopped, marked, row.stopped, row.marked)
				}
			})
		})
	}
}

func same(*corev1.Pod) {}

func TestTendStop_goesOnThoughAServiceCannotBeLedHere(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.sliceless = true
		w.cluster(stops)
		for range 2 {
			if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
				t.Error("the Services are led here")
			}
			pass(t, 30*time.Second)
		}
		if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil || w.cluster(nil).Annotations[contract.AnnotationPostgresStopped] == "" {
			t.Error("nobody looks whether PostgreSQL has stopped")
		}
	})
}

// A postmaster listens until it exits, however long its shutdown takes, and takes no notice of connections that say nothing.
func TestRefuses_aRealServerOnlyOnceItHasStopped(t *testing.T) {
	t.Parallel()
	postgrestest.From(t, 0, func(t *testing.T, s *postgrestest.Server) {
		ours := func() bool {
			var dialer net.Dialer
			return refuses(t.Context(), func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}, "127.0.0.1", s.Port)
		}
		s.Execute(t, "select pg_switch_wal()", "create table a (b int)")
		log := len(s.Log())
		if ours() {
			t.Error("a running server refuses")
		}
		if err := s.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		const held = 200 // as long as we look so often the archiver keeps it from its end
		for looked := 0; ; looked++ {
			refused := ours()
			select {
			case <-s.Ended():
				if !ours() {
					t.Error("somebody listens after the end")
				}
				if said := s.Log()[log:]; strings.Contains(said, "startup packet") || strings.Contains(said, "is shutting down") {
					t.Errorf("it takes notice of the connections: %s", said)
				}
				if looked <= held {
					t.Errorf("it has ended after %d connections", looked)
				}
				return
			default:
			}
			if refused && looked < held {
				t.Fatalf("it refuses before its end:\n%s", s.Log()[log:])
			}
			if looked == held {
				if err := os.WriteFile(filepath.Join(s.Directory, "data", "archived"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}, "archive_mode=on", "archive_command='until test -e archived; do sleep 0.05; done'")
}
