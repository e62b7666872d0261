package waker

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var primary = netip.MustParseAddrPort("10.0.0.1:5432")

// create creates an object, and notifies.
func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.api.Create(w.t.Context(), o); err != nil {
		w.t.Error(err)
	}
	w.notifier.Notify(types.NamespacedName{Namespace: namespace, Name: name})
}

// routed is the slice by which a gateway routes the clients of -rw to itself.
func routed() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "orders-rw-wake",
		Labels: map[string]string{
			"cnpg.io/cluster": name, discoveryv1.LabelServiceName: "orders-rw", discoveryv1.LabelManagedBy: endpointslice.ManagedBy, endpointslice.LabelReplica: "a",
		},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "orders-rw", UID: "orders-rw"}},
	}}
}

// runs sets up an awake cluster with a serving primary.
func (w *world) runs() {
	w.postgres.Store(true)
	w.pod("orders-1", "10.0.0.1", ready)
	w.endpoint("orders-rw", "10.0.0.1")
}

// isolated admits only pods with these labels.
func (w *world) isolated(labels map[string]string) {
	w.create(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clients"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: labels}}},
		}}},
	})
}

// block admits only addresses of a network.
func (w *world) block(cidr string) {
	w.create(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "outside"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}},
		}}},
	})
}

func TestResolve_lendsNobodyItsOwnWayIn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*world)
		err    error
	}{
		{"without a policy the session passes through", func(*world) {}, nil},
		{"a client that the policies let in passes through", func(w *world) { w.isolated(map[string]string{"app": "web"}) }, nil},
		{"one that they bar does not", func(w *world) { w.isolated(map[string]string{"app": "api"}) }, gateway.ErrReconnect},
		{"nor one of which no pod is known", func(w *world) {
			w.isolated(map[string]string{"app": "web"})
			if err := w.api.Delete(w.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}); err != nil {
				w.t.Error(err)
			}
		}, gateway.ErrReconnect},
		{"nor a pod that only a block of addresses would let in: some networks do not match pods by these", func(w *world) { w.block("10.0.0.0/8") }, gateway.ErrReconnect},
		{"a client that is no pod is let in by a block", func(w *world) {
			w.block("10.0.0.0/8")
			if err := w.api.Delete(w.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}); err != nil {
				w.t.Error(err)
			}
		}, nil},
		{"nor one of the node's network", func(w *world) {
			w.isolated(map[string]string{"app": "web"})
			var pod corev1.Pod
			if err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: "web"}, &pod); err != nil {
				w.t.Error(err)
			}
			pod.Spec.HostNetwork = true
			if err := w.api.Update(w.t.Context(), &pod); err != nil {
				w.t.Error(err)
			}
		}, gateway.ErrReconnect},
		{"also where PostgreSQL may see the gateway's address", func(w *world) {
			w.isolated(map[string]string{"app": "api"})
			w.change(func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationGatewayAddress] = "accept" })
		}, gateway.ErrReconnect},
		{"a rule for a network that has the client and the gateway bars nobody", func(w *world) {
			w.change(func(c *cnpgv1.Cluster) { c.Spec.PostgresConfiguration.PgHBA = []string{"host all all 10.0.0.0/8 md5"} })
		}, nil},
		{"one that has only the client does", func(w *world) { w.change(addressed) }, gateway.ErrReconnect},
		{"nobody passes through to an instance of a family of which this pod has no address", func(w *world) { w.waker.Addresses = []netip.Addr{netip.IPv6Loopback()} }, gateway.ErrReconnect},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, awake)
				w.runs()
				w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
				w.create(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Labels: map[string]string{"app": "web"}},
					Status:     corev1.PodStatus{PodIP: "10.1.2.3"},
				})
				row.change(w)
				got, err := w.waker.Resolve(t.Context(), service("-rw"), by)
				if !errors.Is(err, row.err) || err == nil && got != primary {
					t.Errorf("got %s, %v, want %v", got, err, row.err)
				}
				if away := w.waker.MustReconnect(service("-rw"), by.Peer); away != (row.err != nil) {
					t.Errorf("replication is sent away: %t", away)
				}
			})
		})
	}
}

func addressed(c *cnpgv1.Cluster) {
	awake(c)
	c.Spec.PostgresConfiguration.PgHBA = []string{"host all all 10.1.0.0/16 md5"}
}

// A client that is asked to reconnect must not come here again: the slices are gone, and every node knows. Its direct session may
// end before an instance's first sample, so the client counts.
func TestResolve_sendsAwayOnceTheServiceLeadsToPostgreSQL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, addressed)
		slice := routed()
		w.create(slice)
		w.runs()
		w.later(5*time.Second, func() {
			if err := w.api.Delete(w.t.Context(), slice); err != nil {
				w.t.Error(err)
			}
			w.touch()
		})
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, gateway.ErrReconnect) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("after %s, want 5 s for the slice and 2 s for the nodes", took)
		}
		if diff := cmp.Diff([]string{"10.1.2.3 at 10.0.0.1:5432"}, w.signals); diff != "" {
			t.Errorf("whom the instances were to count (-want +got):\n%s", diff)
		}
	})
}

// While a sleep is announced, such a client counts as activity, is held until the announcement is withdrawn, and then counts once
// more.
func TestResolve_holdsWhomItSendsAwayUntilTheSleepIsWithdrawn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(c *cnpgv1.Cluster) {
			addressed(c)
			c.Annotations[contract.AnnotationAnnounced] = contract.Announcement{PodUID: "pod", Deadline: time.Now().Add(20 * time.Second)}.String()
		})
		slice := routed()
		w.create(slice)
		w.runs()
		w.later(3*time.Second, func() {
			w.change(func(c *cnpgv1.Cluster) { delete(c.Annotations, contract.AnnotationAnnounced) })
			if err := w.api.Delete(w.t.Context(), slice); err != nil {
				w.t.Error(err)
			}
			w.touch()
		})
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, gateway.ErrReconnect) || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		if diff := cmp.Diff([]string{"10.1.2.3 at 10.0.0.1:5432", "10.1.2.3 at 10.0.0.1:5432"}, w.signals); diff != "" {
			t.Errorf("whom the instances were to count (-want +got):\n%s", diff)
		}
	})
}

// A sleep that could no longer be stopped is followed by a wake.
func TestResolve_wakesForWhomItCouldNotSendAwayInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, addressed)
		slice := routed()
		w.create(slice)
		w.runs()
		w.later(time.Second, func() {
			w.postgres.Store(false)
			if err := w.api.Delete(w.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "orders-1"}}); err != nil {
				w.t.Error(err)
			}
			w.change(func(c *cnpgv1.Cluster) {
				c.Annotations[contract.AnnotationHibernation] = "on"
				hibernated(c)
			})
			go w.operate()
		})
		w.later(10*time.Second, func() {
			if err := w.api.Delete(w.t.Context(), slice); err != nil {
				w.t.Error(err)
			}
			w.touch()
		})
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, gateway.ErrReconnect) {
			t.Errorf("got %v", err)
		}
		if patches, _, _, _ := w.seen(); len(patches) != 1 {
			t.Errorf("%d patches, want the one that wakes", len(patches))
		}
	})
}

// A client that connects just after hibernation was turned on is held, so no instance sees it. Until the operator begins, the instances are
// told, because they can turn hibernation off again.
func TestResolve_speaksAgainstASwitchThatCanBeTakenBack(t *testing.T) {
	t.Parallel()
	switched := func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		change  func(*world)
		want    []string
	}{
		{"while the instances run", switched, func(w *world) { w.runs() }, []string{"10.1.2.3 at 10.0.0.1:5432"}},
		{"not once one of them ends", switched, func(w *world) {
			w.runs()
			w.pod("orders-2", "10.0.0.2", terminating)
		}, nil},
		{"not while nothing is ready", switched, func(*world) {}, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, row.cluster)
				row.change(w)
				w.later(5*time.Second, func() {
					w.change(awake)
					w.touch()
				})
				_, err := w.waker.Resolve(t.Context(), service("-rw"), by)
				if len(row.want) != 0 && err != nil {
					t.Errorf("the client was not served once hibernation was off: %v", err)
				}
				if diff := cmp.Diff(row.want, w.signals); diff != "" {
					t.Errorf("whom the instances were to count (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// busy is an API server that answers a list when it may.
type busy struct {
	client.Reader
	asked  chan<- struct{}
	answer <-chan struct{}
}

func (b busy) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	b.asked <- struct{}{}
	<-b.answer
	return b.Reader.List(ctx, list, options...)
}

func TestPodAt_asksTheAPIServerOnlySoOftenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		asked, answer := make(chan struct{}, 100), make(chan struct{})
		w.waker.APIReader = busy{w.api, asked, answer}
		failed := make(chan error, 100)
		for i := range 3 * PodSearches {
			go func() {
				_, err := w.waker.podAt(netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}))
				failed <- err
			}()
		}
		synctest.Wait()
		if len(asked) != PodSearches {
			t.Errorf("%d searches go on at once, want %d", len(asked), PodSearches)
		}
		time.Sleep(podTimeout)
		synctest.Wait()
		if len(failed) != 2*PodSearches {
			t.Errorf("%d searches had no place in time, want %d", len(failed), 2*PodSearches)
		}
		for range len(failed) {
			if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("without a place: %v", err)
			}
		}
		close(answer)
		for range PodSearches {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
		if _, err := w.waker.podAt(netip.MustParseAddr("10.9.0.99")); err != nil {
			t.Errorf("a place was not given back: %v", err)
		}
	})
}
