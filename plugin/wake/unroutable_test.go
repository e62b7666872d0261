package wake

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestController_leadsAServiceThatSomebodyElseMade(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.exposed("mine", func(*corev1.Service) {})
		w.endpoint("mine", true)
		a := w.replica("a", "10.1.0.1")
		a.read()
		w.wants("an awake cluster has nothing of ours", nowhere)
		w.cluster(asleep)
		w.endpoint("mine", false)
		a.read()
		w.wants("asleep it leads here", map[string][]string{"a": {"mine", "orders-r", "orders-rw"}})
		w.cluster(awake)
		for _, service := range []string{"mine", "orders-r", "orders-rw"} {
			w.endpoint(service, true)
		}
		a.read()
		w.wants("it goes when it has an endpoint of its own", nowhere)
	})
}

// A selector need not name the cluster if only one cluster matches.
func TestController_leadsAServiceWhoseSelectorNamesNoCluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.exposed("mine", func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{endpointslice.LabelInstanceRole: "primary"}
		})
		a := w.replica("a", "10.1.0.1")
		w.cluster(asleep)
		a.read()
		w.wants("asleep it leads here", map[string][]string{"a": {"mine", "orders-r", "orders-rw"}})
		if got := w.cluster(nil).Annotations[contract.AnnotationUnroutableServices]; got != "" {
			t.Errorf("the annotation says %q", got)
		}
	})
}

func TestController_provesEveryServiceBeforeItAcknowledges(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule         string
		change       func(*world)
		acknowledged bool
	}{
		{"one that kubectl expose made", func(w *world) { w.exposed("mine", func(*corev1.Service) {}) }, true},
		{"one that does not lead here", func(w *world) {
			w.exposed("mine", func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.9.9"} })
			w.passedOver = "10.96.9.9"
		}, false},
		{"one whose session affinity keeps this pod at an instance", func(w *world) {
			w.bound = true
			w.exposed("mine", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
		}, true},
		{"one that cannot be routed here", func(w *world) {
			w.exposed("mine", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
		}, false},
		{"one that cannot, and that is accepted", func(w *world) {
			w.exposed("mine", func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Annotations = map[string]string{contract.AnnotationUnroutable: "accept"}
			})
		}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				row.change(w)
				a := w.replica("a", "10.1.0.1")
				w.cluster(annotated(contract.AnnotationAnnounced, announced(20*time.Second)))
				a.read()
				pass(t, 10*time.Second)
				if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != "" != row.acknowledged {
					t.Errorf("acknowledged: %q\n%s", got, w.logged.String())
				}
			})
		})
	}
}

func TestController_namesTheServicesThatCannotBeLed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
		w.exposed("mine", local)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		w.eventless = true
		if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
			t.Error("a failed Event is not tried again")
		}
		w.eventless = false
		a.read()
		const want = "mine: its externalTrafficPolicy is Local, and the gateway does not run on every node"
		named := func() string { return w.cluster(nil).Annotations[contract.AnnotationUnroutableServices] }
		if got := named(); got != want {
			t.Errorf("the annotation says %q", got)
		}
		events := w.events()
		if len(events) != 1 || events[0].Reason != "ServiceUnroutable" || events[0].Type != corev1.EventTypeWarning || !strings.Contains(events[0].Message, want) {
			t.Errorf("events: %+v", events)
		}
		w.wrote()
		a.read()
		b.read()
		w.wantsWritten("nothing is written again")
		w.cluster(annotated(contract.AnnotationWake, "manual"))
		a.read()
		if got := named(); got != "" {
			t.Errorf("a cluster that only people wake may sleep: %q", got)
		}
		w.cluster(annotated(contract.AnnotationWake, ""))
		a.read()
		w.exposed("mine", func(s *corev1.Service) {
			local(s)
			s.Annotations = map[string]string{contract.AnnotationUnroutable: "accept"}
		})
		a.read()
		if got := named(); got != "" {
			t.Errorf("one that is accepted is named: %q", got)
		}
	})
}

// Another Cluster makes the Service ambiguous, and its deletion changes nothing of this one.
func TestController_looksAgainAtWhatIsAmbiguous(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.exposed("mine", func(s *corev1.Service) {
			s.Spec.Selector = map[string]string{endpointslice.LabelInstanceRole: "primary"}
		})
		other := &cnpgv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "other"}, Spec: cnpgv1.ClusterSpec{Instances: 1},
		}
		w.put(other)
		a := w.replica("a", "10.1.0.1")
		again := a.read()
		if w.cluster(nil).Annotations[contract.AnnotationUnroutableServices] == "" {
			t.Error("it is not ambiguous")
		}
		if err := w.api.Delete(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		if again != time.Minute {
			t.Errorf("the next look is in %s", again)
		}
		if again := a.read(); again != 0 {
			t.Errorf("then the next look is in %s", again)
		}
		if says := w.cluster(nil).Annotations[contract.AnnotationUnroutableServices]; says != "" {
			t.Errorf("the annotation says %q", says)
		}
	})
}

// Such a Service has an endpoint as soon as the waking pod has an address, long before PostgreSQL listens.
func TestController_leadsAServiceThatPublishesAddressesThatAreNotReady(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.exposed("mine", func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })
		w.cluster(asleep)
		a := w.replica("a", "10.1.0.1")
		a.read()
		w.cluster(awake)
		w.endpoint("mine", true)
		a.read()
		w.wants("the pod has an address", map[string][]string{"a": {"mine", "orders-r", "orders-rw"}})
		for _, service := range []string{"orders-r", "orders-rw"} {
			w.endpoint(service, true)
		}
		a.read()
		w.wants("another Service says that it is ready", nowhere)
	})
}

func TestSweep_removesSlicesOfNoCluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a := w.replica("a", "10.1.0.1")
		a.read()
		w.put(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "office", Name: "stray", Labels: map[string]string{discoveryv1.LabelServiceName: "x", endpointslice.LabelReplica: "nobody"},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(10005))}},
		})
		if _, err := a.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wants("what names no cluster goes", toA)
	})
}

// Clients of what became unroutable during a sleep have nothing else that would wake the cluster.
func TestController_keepsWhatSleepsReachable(t *testing.T) {
	t.Parallel()
	local := func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }
	unnamed := func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{endpointslice.LabelInstanceRole: "primary"}
	}
	mine := map[string][]string{"a": {"mine", "orders-r", "orders-rw"}}
	for _, row := range []struct {
		rule          string
		before, after func(*corev1.Service) // nil: there is none
		second        bool                  // whether a second Cluster is made in the namespace
		want          map[string][]string
	}{
		{"a Service that turns to externalTrafficPolicy Local", func(*corev1.Service) {}, local, false, mine},
		{"one that is made with it", nil, local, false, mine},
		{"one whose load balancer takes pods only", nil, func(s *corev1.Service) {
			s.Spec.Type, s.Annotations = corev1.ServiceTypeLoadBalancer, map[string]string{"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip"}
		}, false, mine},
		{"one that a second Cluster makes ambiguous", unnamed, unnamed, true, mine},
		{"one that is made ambiguous says nothing of whom to wake", nil, unnamed, true, toA},
		{"one that turns into an ExternalName has no address of its own", func(*corev1.Service) {}, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		}, false, toA},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				if row.before != nil {
					w.exposed("mine", row.before)
				}
				cluster := w.cluster(asleep)
				a := w.replica("a", "10.1.0.1")
				a.read()
				if row.second {
					w.put(&cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: "sales", UID: "sales"}, Spec: cluster.Spec})
				}
				w.exposed("mine", row.after)
				a.read()
				pass(t, time.Minute)
				a.read()
				w.wants("asleep", row.want)
				if got := a.Unrouted(orders); got != 1 {
					t.Errorf("%d Services are counted as unrouted, want the one of which not every client is led", got)
				}
				for _, event := range w.events() {
					if event.Reason != "ServiceUnroutable" || !strings.HasPrefix(event.Message, "The cluster sleeps, and ") {
						t.Errorf("Event %s: %s", event.Reason, event.Message)
					}
				}
				if got := len(w.events()); got != 1 {
					t.Errorf("%d Events", got)
				}

				w.cluster(awake)
				a.read()
				w.wants("woken, until its own endpoints are ready", row.want)
				for _, name := range []string{"mine", "orders-r", "orders-rw"} {
					w.endpoint(name, true)
				}
				a.read()
				w.wants("ready", nowhere)
				if w.cluster(nil).Annotations[contract.AnnotationUnroutableServices] == "" {
					t.Error("nothing tells the instances to keep the cluster awake")
				}
			})
		})
	}
}

func TestController_leadsSoManyServicesOfACluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		for i := range 100 {
			w.exposed(fmt.Sprintf("a-%02d", i), func(*corev1.Service) {})
		}
		a := w.replica("a", "10.1.0.1")
		w.cluster(annotated(contract.AnnotationAnnounced, announced(20*time.Second)))
		a.read()
		pass(t, 10*time.Second)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != "" {
			t.Error("a cluster may sleep although not all of its Services are led")
		}
		if got, want := w.cluster(nil).Annotations[contract.AnnotationUnroutableServices], "a-30: it is one of 70 too many, because a cluster may have 32"; got != want {
			t.Errorf("the annotation says %q, want %q", got, want)
		}
		led := w.routed()["a"]
		if len(led) != mostServices || !slices.Contains(led, "orders-rw") || !slices.Contains(led, "orders-r") {
			t.Errorf("%d are led: %v", len(led), led)
		}
	})
}

func TestController_looksAtTheClustersThatAServiceConcerns(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.exposed("mine", func(*corev1.Service) {})
		w.exposed("everybody", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"role": "primary"} })
		w.exposed("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 8080 })
		for name, want := range map[string]int{"mine": 1, "everybody": 1, "web": 0} {
			w.endpoint(name, true)
			var service corev1.Service
			if err := w.api.Get(t.Context(), client.ObjectKey{Namespace: orders.Namespace, Name: name}, &service); err != nil {
				t.Fatal(err)
			}
			if got := a.ofCluster(t.Context(), &service); len(got) != want {
				t.Errorf("Service %s: %v", name, got)
			}
		}
		services, err := a.Informers.Services(t.Context(), orders)
		if err != nil {
			t.Fatal(err)
		}
		own, err := a.Informers.Slices(t.Context(), orders, services)
		if err != nil {
			t.Fatal(err)
		}
		concerned := map[string]int{}
		for i := range own {
			concerned[own[i].Name] = len(a.ofCluster(t.Context(), &own[i]))
		}
		if diff := cmp.Diff(map[string]int{"mine-own": 1, "everybody-own": 1}, concerned); diff != "" {
			t.Errorf("clusters that each slice concerns (-want +got):\n%s", diff)
		}
		if endpointslice.IsOurs(&own[0]) {
			t.Error("a Service's own slice is taken for ours")
		}
	})
}
