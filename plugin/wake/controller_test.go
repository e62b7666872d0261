package wake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// in runs a test in which time only passes while everything waits.
func in(t *testing.T, do func(*testing.T, *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { do(t, newWorld(t)) })
}

// pass lets time pass.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
	synctest.Wait()
}

func (w *world) wants(rule string, want map[string][]string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.routed()); diff != "" {
		w.t.Errorf("%s: who is routed where (-want +got):\n%s", rule, diff)
	}
}

func (w *world) wantsWritten(rule string, want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.wrote()); diff != "" {
		w.t.Errorf("%s: written (-want +got):\n%s", rule, diff)
	}
}

var (
	nowhere = map[string][]string{}
	toA     = map[string][]string{"a": {"orders-r", "orders-rw"}}
	toBoth  = map[string][]string{"a": {"orders-r", "orders-rw"}, "b": {"orders-r", "orders-rw"}}
)

func asleep(c *cnpgv1.Cluster) {
	delete(c.Annotations, contract.AnnotationAnnounced)
	c.Annotations[contract.AnnotationHibernation], c.Annotations[contract.AnnotationAsleepSince] = "on", "2026-03-01T00:00:00Z"
}

func awake(c *cnpgv1.Cluster) {
	delete(c.Annotations, contract.AnnotationHibernation)
	c.Status.Conditions = nil
}

func TestADayOfACluster(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.endpoint("orders-rw", true)
		w.endpoint("orders-r", true)
		a.read()
		w.wants("an awake cluster has nothing of ours", nowhere)
		w.wantsWritten("nothing is written for an awake cluster")

		announcement := announced(20 * time.Second)
		w.cluster(annotated(contract.AnnotationAnnounced, announcement))
		again := a.read()
		w.wants("an announcement leads the Services here", toA)
		w.wantsWritten("ports and slices are written", "create ConfigMap", "create EndpointSlice", "create EndpointSlice")
		if again != 20*time.Second {
			t.Errorf("the next look is in %s, want at the deadline", again)
		}
		pass(t, 1900*time.Millisecond)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != "" {
			t.Errorf("acknowledged %q before the other nodes could know", got)
		}
		pass(t, 500*time.Millisecond)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != announcement {
			t.Errorf("acknowledged %q, want %q", got, announcement)
		}
		w.wantsWritten("the acknowledgement is one patch", "patch Cluster")
		a.read()
		w.wantsWritten("an acknowledged announcement needs nothing")

		w.cluster(func(c *cnpgv1.Cluster) {
			asleep(c)
			c.Status.Conditions = []metav1.Condition{{Type: contract.AnnotationHibernation, Status: metav1.ConditionTrue, Reason: "Hibernated"}}
		})
		w.endpoint("orders-rw", false)
		w.endpoint("orders-r", false)
		if again := a.read(); again != 0 {
			t.Errorf("a sleeping cluster is looked at again in %s", again)
		}
		w.wants("a sleeping cluster's Services lead here", toA)
		w.wantsWritten("nothing is written at rest")

		w.cluster(func(c *cnpgv1.Cluster) {
			c.Status.Conditions = nil
			delete(c.Annotations, contract.AnnotationHibernation)
			delete(c.Annotations, contract.AnnotationGatewayReady)
		})
		a.read()
		w.wants("a woken cluster's do until they are ready", toA)
		w.endpoint("orders-rw", true)
		again = a.read()
		w.wants("each goes when it has an endpoint of its own", map[string][]string{"a": {"orders-r"}})
		if len(a.network.open()) != 2 || again != drainDelay {
			t.Errorf("%d listeners, the next look in %s: the listener stays a moment", len(a.network.open()), again)
		}
		w.endpoint("orders-r", true)
		a.read()
		pass(t, drainDelay)
		if again := a.read(); again != 0 || len(a.network.open()) != 0 {
			t.Errorf("%d listeners are left, the next look in %s", len(a.network.open()), again)
		}
		w.wants("then nothing of ours is left", nowhere)
	})
}

func TestAnnouncementsThatAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		before func(*world)
		after  func(*world) // the announcement was seen
		want   string       // "announcement": as it is
	}{
		{"one whose Services do not lead here is not", func(w *world) { w.unrouted = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4} }, func(*world) {}, ""},
		{"one that is taken back is not", func(*world) {}, func(w *world) { w.cluster(annotated(contract.AnnotationAnnounced, "")) }, ""},
		{"one that another follows is not", func(*world) {}, func(w *world) { w.cluster(annotated(contract.AnnotationAnnounced, announced(25*time.Second))) }, ""},
		{"one that wake=manual follows is not", func(*world) {}, func(w *world) { w.cluster(annotated(contract.AnnotationWake, "manual")) }, ""},
		{"one that another replica acknowledged is not again", func(*world) {}, func(w *world) {
			c := w.cluster(nil)
			w.cluster(annotated(contract.AnnotationGatewayReady, c.Annotations[contract.AnnotationAnnounced]))
		}, "announcement"},
		{"one with a Service whose family of addresses this replica has not is not", func(w *world) {
			var services corev1.ServiceList
			if err := w.api.List(w.t.Context(), &services); err != nil {
				w.t.Fatal(err)
			}
			for i := range services.Items {
				services.Items[i].Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
				services.Items[i].Spec.ClusterIP, services.Items[i].Spec.ClusterIPs = "fd00::1", []string{"fd00::1"}
				if err := w.api.Update(w.t.Context(), &services.Items[i]); err != nil {
					w.t.Fatal(err)
				}
			}
		}, func(*world) {}, ""},
		{"one of a cluster without Services is not", func(w *world) {
			if err := w.api.DeleteAllOf(w.t.Context(), &corev1.Service{}, client.InNamespace(orders.Namespace)); err != nil {
				w.t.Fatal(err)
			}
		}, func(*world) {}, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				announcement := announced(20 * time.Second)
				w.cluster(annotated(contract.AnnotationAnnounced, announcement))
				row.before(w)
				a.read()
				pass(t, time.Second)
				row.after(w)
				w.wrote()
				pass(t, 10*time.Second)
				got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]
				if want := strings.ReplaceAll(row.want, "announcement", announcement); got != want {
					t.Errorf("acknowledged %q, want %q", got, want)
				}
				w.wantsWritten("no acknowledgement is written")
			})
		})
	}
}

// failing is an API server that answers with an error until then.
type failing struct {
	client.Reader
	until time.Time
}

func (f failing) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*cnpgv1.Cluster); ok && time.Now().Before(f.until) {
		return errors.New("not today")
	}
	return f.Reader.Get(ctx, key, o, options...)
}

// Nobody else answers an announcement if there is one replica, and the sidecar waits longer after each in vain.
func TestHandover_acknowledgesAgainWhatTheAPIServerHasNotTaken(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		announcement := announced(20 * time.Second)
		w.cluster(annotated(contract.AnnotationAnnounced, announcement))
		w.refused, a.APIReader = "patch Cluster", failing{a.APIReader, time.Now().Add(10 * time.Second)}
		a.read()
		pass(t, 10*time.Second)
		w.mutex.Lock()
		w.refused = ""
		w.mutex.Unlock()
		pass(t, time.Second)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != announcement {
			t.Errorf("acknowledged %q, want %q", got, announcement)
		}
	})
}

// In a namespace that is being deleted, slices disappear before the Cluster and cannot be recreated.
func TestRoute_leavesANamespaceThatIsBeingDeleted(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.cluster(asleep)
		leaving := apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "orders-rw", errors.New("it is being terminated"))
		leaving.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		w.refused, w.refusal = "create EndpointSlice", leaving
		a.read()
		w.wants("in a namespace that is being deleted", nowhere)
	})
}

// What the plugin cannot reach it must not take over: a client that wakes the cluster later would wait in vain.
func TestController_takesOverOnlyWhatItReaches(t *testing.T) {
	t.Parallel()
	for _, isolated := range []bool{false, true} {
		t.Run(fmt.Sprintf("isolated %t", isolated), func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.isolated = isolated
				w.endpoint("orders-rw", true, "10.0.0.1")
				announcement := announced(20 * time.Second)
				w.cluster(annotated(contract.AnnotationAnnounced, announcement))
				a.read()
				pass(t, 10*time.Second)
				if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; (got == announcement) == isolated {
					t.Errorf("acknowledged %q", got)
				}
				var told corev1.EventList
				if err := w.api.List(t.Context(), &told); err != nil {
					t.Fatal(err)
				}
				says := slices.ContainsFunc(told.Items, func(e corev1.Event) bool {
					return e.Reason == "InstanceUnreachable" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "connect to instance 10.0.0.1:5432: it accepts no connection from the plugin's pod")
				})
				if says != isolated {
					t.Errorf("Events: %+v", told.Items)
				}
			})
		})
	}
}

// Until kube-proxy knows the slices, every test connection reaches an instance, whose server starts a process for it.
func TestController_sparesTheInstancesWhileKubeProxyIsLate(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		late   time.Duration
		pinned []string
		want   bool
	}{
		{"only one Service is tried until it leads here", 4 * time.Second, nil, true},
		{"one without session affinity, whatever their order", 4 * time.Second, []string{"orders-r"}, true},
		{"another one too", 4 * time.Second, []string{"orders-rw"}, true},
		{"not for longer than kube-proxy takes", 7 * time.Second, nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.unrouted, w.bound = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}, true
				var services corev1.ServiceList
				if err := w.api.List(t.Context(), &services); err != nil {
					t.Fatal(err)
				}
				for i := range services.Items {
					if service := &services.Items[i]; slices.Contains(row.pinned, service.Name) {
						service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
						if err := w.api.Update(t.Context(), service); err != nil {
							t.Fatal(err)
						}
					}
				}
				announcement := announced(20 * time.Second)
				w.cluster(annotated(contract.AnnotationAnnounced, announcement))
				a.read()
				pass(t, row.late)
				w.mutex.Lock()
				w.unrouted = nil
				w.mutex.Unlock()
				pass(t, 10*time.Second)
				if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; (got == announcement) != row.want {
					t.Errorf("acknowledged is %q", got)
				}
				if most := int(row.late/dialInterval) + 10; w.dialed > most {
					t.Errorf("%d connections were tried, want at most %d", w.dialed, most)
				}
			})
		})
	}
}

// A dual-stack Service leads here by both families, and is tested for each.
func TestBothFamilies(t *testing.T) {
	t.Parallel()
	both := []string{"10.1.0.1", "fd00::a:1"}
	for _, row := range []struct {
		rule         string
		replica      []string
		unrouted     []discoveryv1.AddressType
		endpoints    []string
		acknowledged bool
	}{
		{"an announcement is acknowledged when both lead here", both, nil, []string{"10.0.0.1", "fd00::b:1"}, true},
		{"not when only IPv4 does", both, []discoveryv1.AddressType{discoveryv1.AddressTypeIPv6}, []string{"10.0.0.1", "fd00::b:1"}, false},
		{"nor when only IPv6 does", both, []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}, []string{"10.0.0.1", "fd00::b:1"}, false},
		{"a family that the instances serve and this replica has not is missed", both[:1], nil, []string{"10.0.0.1", "fd00::b:1"}, false},
		{"one that nobody serves is not", both[:1], nil, []string{"10.0.0.1"}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.dual()
				w.unrouted = row.unrouted
				for _, service := range []string{"orders-rw", "orders-r"} {
					w.endpoint(service, true, row.endpoints...)
				}
				a := w.replica("a", row.replica...)
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

// Kubernetes writes the endpoints of one family after the other's: the Service leads here until both exist.
func TestAWokenServiceOfBothFamiliesIsLedUntilItServesBoth(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.dual()
		a := w.replica("a", "10.1.0.1", "fd00::a:1")
		w.cluster(asleep)
		a.read()
		twice := map[string][]string{"a": {"orders-r", "orders-r", "orders-rw", "orders-rw"}}
		w.wants("a sleeping cluster's Services lead here by both", twice)
		w.cluster(awake)
		w.endpoint("orders-rw", true)
		a.read()
		w.wants("a Service that serves IPv4 only does by IPv6", map[string][]string{"a": {"orders-r", "orders-r", "orders-rw"}})
		w.endpoint("orders-rw", false)
		pass(t, toldWithin)
		a.read()
		w.wants("one that serves IPv4 no longer does by both again", twice)
		w.endpoint("orders-rw", true, "10.0.0.1", "fd00::b:1")
		a.read()
		w.wants("one that serves both does not", map[string][]string{"a": {"orders-r", "orders-r"}})
		w.endpoint("orders-r", true, "10.0.0.1", "fd00::b:1")
		a.read()
		w.wants("then nothing of ours is left", nowhere)
	})
}

// Changes to our slices are reverted, and additions stay.
func TestASliceThatSomebodyChangedIsMended(t *testing.T) {
	for _, row := range []struct {
		rule   string
		change func(*discoveryv1.EndpointSlice)
	}{
		{"it names another port", func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To(int32(7)) }},
		{"it has no endpoints", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }},
		{"it does not say who made it", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelManagedBy) }},
		{"nor that, nor has it endpoints", func(s *discoveryv1.EndpointSlice) {
			delete(s.Labels, discoveryv1.LabelManagedBy)
			s.Endpoints = nil
		}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a := w.replica("a", "10.1.0.1")
				w.cluster(asleep)
				a.read()
				var before discoveryv1.EndpointSliceList
				if err := w.api.List(t.Context(), &before, client.MatchingLabels{discoveryv1.LabelServiceName: "orders-rw"}); err != nil || len(before.Items) != 1 {
					t.Fatal(len(before.Items), err)
				}
				slice := before.Items[0].DeepCopy()
				slice.Labels["team"], slice.Annotations, slice.Finalizers = "x", map[string]string{"example.org/a": "b"}, []string{"example.org/f"}
				added := slice.DeepCopy()
				row.change(slice)
				if err := w.api.Update(t.Context(), slice); err != nil {
					t.Fatal(err)
				}
				a.read()
				pass(t, toldWithin)
				a.read()
				var after discoveryv1.EndpointSlice
				if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(slice), &after); err != nil {
					t.Fatal(err)
				}
				added.ResourceVersion = after.ResourceVersion
				if diff := cmp.Diff(added, &after); diff != "" {
					t.Errorf("slice (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestHandover_acknowledgesWhatOnlyAWindowWakes(t *testing.T) {
	for wake, acknowledged := range map[string]bool{contract.WakeOnWindow: true, contract.WakeManual: false} {
		t.Run(wake, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, announcement := w.replica("a", "10.1.0.1"), announced(20*time.Second)
				w.cluster(annotated(contract.AnnotationWake, wake))
				w.cluster(annotated(contract.AnnotationAnnounced, announcement))
				a.read()
				w.wants("no client wakes it", map[string][]string{})
				pass(t, 3*time.Second)
				if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; (got == announcement) != acknowledged {
					t.Errorf("the acknowledgement is %q", got)
				}
			})
		})
	}
}

func TestAPassedDeadlineTakesTheSlicesAway(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.cluster(annotated(contract.AnnotationAnnounced, announced(20*time.Second)))
		a.read()
		w.wants("while it is announced", toA)
		pass(t, 3*time.Second)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got == "" {
			t.Fatal("it is not acknowledged")
		}
		pass(t, 17*time.Second)
		w.wantsWritten("the acknowledgement was written", "create ConfigMap", "create EndpointSlice", "create EndpointSlice", "patch Cluster")
		a.read()
		w.wants("a late request to turn hibernation on may still succeed", toA)
		w.wantsWritten("until the acknowledgement is removed", "patch Cluster")
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != "" {
			t.Errorf("the acknowledgement is still %q", got)
		}
		a.read()
		w.wants("after the deadline", nowhere)
	})
}

func TestARestartOfTheContainerWritesNothing(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		before := w.replica("a", "10.1.0.1")
		before.read()
		w.wants("before", toA)
		open := before.network.open()
		before.network.close()
		again := w.replica("a", "10.1.0.1")
		w.pod("a", corev1.ConditionFalse) // it has just started
		again.read()
		w.wantsWritten("what is there is taken over, also by one that is not ready yet")
		if diff := cmp.Diff(open, again.network.open()); diff != "" {
			t.Errorf("ports (-before +after):\n%s", diff)
		}
	})
}

func TestReplicas(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.cluster(asleep)
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		w.pod("b", corev1.ConditionFalse)
		a.read()
		b.read()
		w.wants("a replica that is not ready leads nobody to itself", toA)
		w.pod("b", corev1.ConditionTrue)
		w.wrote()
		b.read()
		w.wants("one that is does", toBoth)
		if diff := cmp.Diff(a.network.open(), b.network.open()); diff != "" {
			t.Errorf("the replicas' ports (-a +b):\n%s", diff)
		}
		w.wantsWritten("ports are written once", "create EndpointSlice", "create EndpointSlice")

		w.pod("b", corev1.ConditionUnknown) // its node is lost
		if again := a.read(); again != unreadyFor {
			t.Errorf("the next look is in %s, want %s", again, unreadyFor)
		}
		w.wants("a moment's weakness takes nothing away", toBoth)
		pass(t, unreadyFor)
		a.read()
		w.wants("what leads to a dead replica goes", toA)

		w.pod("b", corev1.ConditionTrue)
		b.read()
		w.wants("when it is back it leads there again", toBoth)
		pass(t, time.Minute)
		w.pod("a", corev1.ConditionFalse)
		if err := w.api.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "b"}}); err != nil {
			t.Fatal(err)
		}
		a.read()
		w.wants("who is not ready does not judge", toBoth)
		w.pod("a", corev1.ConditionTrue)
		a.read()
		w.wants("a pod that is gone is dead", toA)
	})
}

// A quota may refuse Events for as long as it likes.
func TestController_acknowledgesAlthoughEventsCannotBeWritten(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		wake, err := contract.LastWake{At: time.Now(), By: "10.9.9.9", Service: "orders-rw"}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, service := range []string{"orders-r", "orders-rw"} {
			w.endpoint(service, true)
		}
		w.cluster(annotated(contract.AnnotationLastWake, wake))
		a := w.replica("a", "10.1.0.1")
		a.read()
		pass(t, plan.WakerEventDelay)
		w.eventless = true
		if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
			t.Error("a failed Event is not tried again")
		}
		announcement := announced(20 * time.Second)
		w.cluster(annotated(contract.AnnotationAnnounced, announcement))
		for range 2 * int(a.Settings.HandoverWait/time.Second+1) {
			_, _ = a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders})
			pass(t, time.Second)
		}
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != announcement {
			t.Errorf("acknowledged is %q, want %q", got, announcement)
		}
	})
}

func TestController_refusesWakesThatMayDeleteVolumes(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		w.cluster(asleep)
		a.read()
		b.read()
		maintain := func(inProgress bool) {
			w.cluster(func(c *cnpgv1.Cluster) {
				c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: inProgress, ReusePVC: new(bool)}
			})
		}
		maintain(true)
		w.eventless = true
		if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
			t.Error("a failed Event is not tried again")
		}
		w.eventless = false
		a.read()
		b.read()
		w.wants("clients still come here, to be told", toBoth)
		events := w.events()
		if len(events) != 1 || events[0].Reason != "WakeRefused" || events[0].Type != corev1.EventTypeWarning || !strings.Contains(events[0].Message, "set spec.nodeMaintenanceWindow.inProgress to false, or reusePVC to true") {
			t.Errorf("events: %+v", events)
		}
		w.wrote()
		a.read()
		b.read()
		w.wantsWritten("nothing is written again")
		maintain(false)
		a.read()
		maintain(true)
		a.read()
		if again := w.events(); len(again) != 1 {
			t.Errorf("one sleep has %d Events", len(again))
		}
		w.cluster(annotated(contract.AnnotationWake, "manual"))
		b.read()
		w.wants("what else is in the way takes a replica's slices away", toA)
		if events := w.events(); len(events) != 2 || !strings.Contains(events[1].Message, "or reusePVC to true. To wake it") {
			t.Errorf("events: %+v", events)
		}
	})
}

func TestWhatDisarmsASleepingCluster(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, key, value, says string
	}{
		{"wake=manual does", contract.AnnotationWake, "manual", "does not list on-connect"},
		{"enabled=false does", contract.AnnotationEnabled, "false", "turned off"},
		{"a bad annotation does", contract.AnnotationActivity, "everything", "is invalid"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
				w.cluster(asleep)
				a.read()
				b.read()
				w.wants("before", toBoth)
				w.cluster(annotated(row.key, row.value))
				a.read()
				b.read()
				w.wants("after", nowhere)
				events := w.events()
				if len(events) != 1 || !strings.Contains(events[0].Message, row.says) ||
					!strings.Contains(events[0].Message, "kubectl annotate -n shop clusters.postgresql.cnpg.io orders cnpg.io/hibernation-") {
					t.Errorf("events: %+v", events)
				}
				w.wrote()
				a.read()
				w.wantsWritten("nothing is written again")
			})
		})
	}
	t.Run("what cannot be told at once is told later", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			a := w.replica("a", "10.1.0.1")
			w.cluster(asleep)
			a.read()
			w.cluster(annotated(contract.AnnotationWake, "manual"))
			w.eventless = true
			for range 2 {
				if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err == nil {
					t.Error("it is not tried again")
				}
				w.wants("all the same", nowhere)
			}
			w.eventless = false
			a.read()
			if events := w.events(); len(events) != 1 || events[0].Reason != "WakesByHandOnly" || events[0].Type != corev1.EventTypeWarning {
				t.Errorf("events: %+v", events)
			}
			w.wrote()
			a.read()
			w.wantsWritten("nothing is written again")
		})
	})
	t.Run("a person's hibernation has nothing of ours", func(t *testing.T) {
		in(t, func(_ *testing.T, w *world) {
			a := w.replica("a", "10.1.0.1")
			w.cluster(asleep)
			a.read()
			w.manager = "kubectl-annotate"
			a.read()
			w.wants("after off and on by a person", nowhere)
		})
	})
	t.Run("a deleted Cluster has nothing of ours", func(t *testing.T) {
		in(t, func(t *testing.T, w *world) {
			a := w.replica("a", "10.1.0.1")
			w.cluster(asleep)
			a.read()
			if err := w.api.Delete(t.Context(), w.cluster(nil)); err != nil {
				t.Fatal(err)
			}
			a.read()
			pass(t, drainDelay)
			a.read()
			w.wants("after", nowhere)
			if len(a.network.open()) != 0 {
				t.Error("a listener is left")
			}
		})
	})
}

func TestWhoWokeItIsTold(t *testing.T) {
	t.Parallel()
	told := func(ago time.Duration, service string) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			awake(c)
			value, err := contract.LastWake{At: time.Now().Add(-ago), By: "10.0.0.9", User: "app", Database: "shop", Service: service}.Encode()
			if err != nil {
				t.Error(err)
			}
			c.Annotations[contract.AnnotationLastWake] = value
		}
	}
	for _, row := range []struct {
		rule  string
		woken func(*cnpgv1.Cluster)
		ready string
		after time.Duration
		want  int
	}{
		{"once the Service is ready, of a replica that did not", told(0, "orders-rw"), "orders-rw", plan.WakerEventDelay, 1},
		{"not before that replica had the time to", told(0, "orders-rw"), "orders-rw", plan.WakerEventDelay - time.Millisecond, 0},
		{"not before the Service is ready", told(0, "orders-rw"), "orders-r", time.Minute, 0},
		{"not of a wake of long ago", told(plan.StandInFor+time.Second, "orders-rw"), "orders-rw", plan.WakerEventDelay, 0},
		{"not of a Service that is gone", told(0, "orders-gone"), "orders-rw", plan.WakerEventDelay, 0},
		{"not of a wake by hand", awake, "orders-rw", plan.WakerEventDelay, 0},
		{"not of what somebody else wrote", func(c *cnpgv1.Cluster) { awake(c); c.Annotations[contract.AnnotationLastWake] = "me" }, "orders-rw", plan.WakerEventDelay, 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
				w.cluster(asleep)
				a.read()
				w.cluster(row.woken)
				w.endpoint(row.ready, true)
				a.read()
				b.read()
				pass(t, row.after)
				a.read()
				b.read()
				events := w.events()
				if len(events) != row.want {
					t.Fatalf("%d Events, want %d: %+v", len(events), row.want, events)
				}
				if row.want != 0 && (events[0].Reason != "Woken" || !strings.HasPrefix(events[0].Message, `Woken by 10.0.0.9 (user "app", database "shop") through Service orders-rw;`)) {
					t.Errorf("it says %s: %s", events[0].Reason, events[0].Message)
				}
				w.wrote()
				a.read()
				w.wantsWritten("nothing is written again")
			})
		})
	}
}

// A kube-proxy that learns late of new slices also learns late of deleted ones.
func TestController_keepsAPortOpenForAsLongAsTheOtherNodesAreGiven(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		a.Settings.HandoverWait = 10 * time.Second
		w.cluster(asleep)
		a.read()
		w.cluster(awake)
		w.endpoint("orders-rw", true)
		w.endpoint("orders-r", true)
		if again := a.read(); again != 10*time.Second {
			t.Errorf("the next look is in %s", again)
		}
		w.wants("nothing leads here", nowhere)
		pass(t, 9*time.Second)
		if a.read(); len(a.network.open()) != 2 {
			t.Errorf("%d ports are open", len(a.network.open()))
		}
		pass(t, time.Second)
		if a.read(); len(a.network.open()) != 0 {
			t.Errorf("%d ports are left open", len(a.network.open()))
		}
	})
}

func TestLeave(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		w.cluster(asleep)
		a.read()
		b.read()
		var ledThen map[string][]string
		a.network.onDrain = func() []string { ledThen = w.routed(); return nil }
		began := time.Now()
		a.Leave(t.Context())
		a.Drain(t.Context())
		if diff := cmp.Diff(map[string][]string{"b": {"orders-r", "orders-rw"}}, ledThen); diff != "" {
			t.Errorf("who was routed where when the sessions were drained (-want +got):\n%s", diff)
		}
		if took, want := time.Since(began), drainDelay+2*removalLasts; took != want {
			t.Errorf("clients were accepted for %s, want %s: a kube-proxy takes the longer the more slices there were", took, want)
		}
		a.read()
		w.wants("a replica that stops leads nobody to itself again", map[string][]string{"b": {"orders-r", "orders-rw"}})
	})
}

// A replica that has just started may not have its slices yet. A stopping replica waits for them, but not forever.
func TestLeave_waitsForAnother(t *testing.T) {
	for _, row := range []struct {
		rule  string
		comes bool
		takes time.Duration
	}{
		{"until another leads the clients", true, 3 * time.Second},
		{"for ten seconds if none does", false, takeOverTimeout},
	} {
		t.Run(row.rule, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
				w.cluster(asleep)
				a.read()
				go func() {
					time.Sleep(3 * time.Second) // the bubble's clock
					if row.comes {
						b.read()
					}
				}()
				began := time.Now()
				a.Leave(t.Context())
				if took := time.Since(began) - drainDelay; took < row.takes || took > row.takes+takeOverInterval {
					t.Errorf("it waited for %s, want %s", took, row.takes)
				}
			})
		})
	}
}

// Slices that are left when the replica is gone lead to nobody until another replica removes them.
func TestLeave_removesItsSlicesThoughTheAPIServerIsSlow(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a, b := w.replica("a", "10.1.0.1"), w.replica("b", "10.1.0.2")
		w.cluster(asleep)
		a.read()
		b.read()
		w.deleteAll = removeTimeout + a.Settings.DrainTimeout - time.Millisecond
		began := time.Now()
		a.Leave(t.Context())
		w.wants("another replica alone", map[string][]string{"b": {"orders-r", "orders-rw"}})
		a.Drain(t.Context())
		if took, longest := time.Since(began), takeOverTimeout+removeTimeout+drainDelay+a.Settings.DrainTimeout; took > longest {
			t.Errorf("it took %s, and Kubernetes kills a pod after little more than %s", took, longest)
		}
	})
}

func TestSweep(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.cluster(asleep)
		a.read()
		w.wrote()
		if used, err := a.sweep(t.Context()); used != 2 || err != nil {
			t.Errorf("%d ports, %v, want 2", used, err)
		}
		w.wantsWritten("nothing is written while every Service is there")
		var service corev1.Service
		key := client.ObjectKey{Namespace: "shop", Name: "orders-rw"}
		if err := w.api.Get(t.Context(), key, &service); err != nil {
			t.Fatal(err)
		}
		if err := w.api.Delete(t.Context(), &service); err != nil {
			t.Fatal(err)
		}
		service.ResourceVersion = ""
		if err := w.api.Create(t.Context(), &service); err != nil { // its UID is its name, as before
			t.Fatal(err)
		}
		service.UID = "another"
		if err := w.api.Update(t.Context(), &service); err != nil {
			t.Fatal(err)
		}
		w.wrote()
		if used, err := a.sweep(t.Context()); used != 1 || err != nil {
			t.Errorf("%d ports, %v, want 1", used, err)
		}
		w.wantsWritten("the port of a Service that was made anew is freed", "update ConfigMap")
	})
}

func TestSweepPassesOverWhatIsNotUnderstood(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.put(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "scale-to-zero-ports-10000", Labels: map[string]string{ports.Label: ports.LabelValue}},
			Data:       map[string]string{"10000": "mine", "10001": "", "10002": "gone-uid shop/gone"},
		})
		if used, err := a.sweep(t.Context()); used != 2 || err != nil {
			t.Errorf("%d ports, %v, want 2", used, err)
		}
		w.wantsWritten("the port of a Service that is gone is freed all the same", "update ConfigMap")
	})
}

func TestWithoutAPortTheClusterStaysAwake(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		a.ports.Range.Last = a.ports.Range.First
		bills := ports.Owner{UID: "bills-rw", Namespace: "office", Name: "bills-rw"}
		if _, err := a.ports.Assign(t.Context(), []ports.Request{{Owner: bills}}, time.Now()); err != nil {
			t.Fatal(err)
		}
		w.cluster(annotated(contract.AnnotationAnnounced, announced(20*time.Second)))
		for range 3 {
			if again := a.read(); again <= 0 || again > unallocatedFor {
				t.Errorf("the next look is in %s", again)
			}
		}
		if said := strings.Count(w.logged.String(), "the gateway cannot serve a Service of a cluster"); said != 1 {
			t.Errorf("it was said %d times, want once: %s", said, &w.logged)
		}
		pass(t, 10*time.Second)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != "" {
			t.Errorf("acknowledged %q", got)
		}
		w.wants("and no slice is left behind", nowhere)
	})
}

func TestController_leadsTheServicesThatGotAPort(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		a.ports.Range.Last = a.ports.Range.First
		w.cluster(annotated(contract.AnnotationAnnounced, announced(20*time.Second)))
		for range 2 {
			if again := a.read(); again <= 0 || again > unallocatedFor {
				t.Errorf("the next look is in %s", again)
			}
			if led := w.routed()["a"]; len(led) != 1 {
				t.Errorf("with one port, %v are led", led)
			}
		}
		pass(t, 10*time.Second)
		if got := w.cluster(nil).Annotations[contract.AnnotationGatewayReady]; got != "" {
			t.Errorf("acknowledged %q, although a Service leads nowhere", got)
		}
		w.cluster(asleep)
		a.read()
		if got := a.Unrouted(orders); got != 1 {
			t.Errorf("%d Services lead nowhere, want the one without a port", got)
		}
		a.ports.Range.Last++
		a.read()
		w.wants("the port that is free now is used", toA)
	})
}

func TestRetriesAreNotFarApart(t *testing.T) {
	t.Parallel()
	limiter := retries()
	var wait, longest time.Duration
	for range 100 { // as in an outage of the API server
		wait = limiter.When(ctrl.Request{NamespacedName: orders})
		longest = max(longest, wait)
	}
	if wait != lastRetry || longest != lastRetry {
		t.Errorf("the wait comes to %s, %s at most, want %s", wait, longest, lastRetry)
	}
	for i := range 10_000 { // a fleet that fails at once
		if wait := limiter.When(ctrl.Request{NamespacedName: client.ObjectKey{Name: strconv.Itoa(i)}}); wait != firstRetry {
			t.Fatalf("cluster %d waits for %s", i, wait)
		}
	}
}

func TestController_standsInForAWokenClusterForAnHour(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		a := w.replica("a", "10.1.0.1")
		w.cluster(asleep)
		a.read()
		w.cluster(awake)
		a.read()
		pass(t, 59*time.Minute) // a volume that is detached from a lost node comes after six
		a.read()
		w.wants("clients are held", toA)
		pass(t, time.Minute)
		a.read()
		w.wants("then it is somebody's to mend", nowhere)
	})
}
