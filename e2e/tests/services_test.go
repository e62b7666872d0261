package tests

import (
	"fmt"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// expose creates a Service of the cluster's primary like kubectl expose: it selects by every label of the pod.
func (s *story) expose(c *cnpgv1.Cluster, name string, change func(*corev1.Service)) *corev1.Service {
	s.Helper()
	var pod corev1.Pod
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-1"}, &pod))
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-" + name},
		Spec: corev1.ServiceSpec{
			Selector: pod.Labels, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 5432, TargetPort: intstr.FromInt32(5432)}},
		},
	}
	change(service)
	s.must(kube.Create(s.ctx, service))
	return service
}

// Clients of user-made Services wake the cluster, and a Service that cannot be routed to the gateway keeps it awake.
func TestServicesThatSomebodyElseMade(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	s.expose(c, "mine", func(*corev1.Service) {})
	s.expose(c, "sticky", func(service *corev1.Service) { service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	s.answers(c)
	for _, service := range []string{"mine", "sticky"} {
		s.sleeps(c)
		s.awaitSlices(c, toSettle, "rw", "r", "mine", "sticky")
		start := time.Now()
		answer, err := kube.QueryAs(s.ctx, c, service, fromAfar, "select 'answered ' || pg_is_in_recovery()")
		s.must(err)
		t.Logf("answered through %s after %.2fs", service, time.Since(start).Seconds())
		if answer != "answered false" {
			t.Errorf("the answer through %s is %q", service, answer)
		}
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, toSettle)
	}

	local := s.expose(c, "local", func(service *corev1.Service) {
		service.Spec.Type, service.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	})
	_, err := kube.AwaitEventSaying(s.ctx, c, "ServiceUnroutable", local.Name+": its externalTrafficPolicy is Local", toSettle)
	s.must(err)
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "service_unroutable", "a Service that cannot be routed to the gateway")
	s.explains(c, "(service_unroutable)", local.Name+": ")
	accept := "accept"
	s.must(kube.Annotate(s.ctx, local, "xata.io/scale-to-zero-unroutable", &accept))
	s.sleeps(c)
	s.awaitSlices(c, toSettle, "rw", "r", "mine", "sticky")
}

// A Service that is changed or made while the cluster sleeps, so that it could not lead to the gateway before a sleep, goes on waking
// the cluster by its ClusterIP.
func TestServicesThatChangeDuringASleep(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	changed := s.expose(c, "changed", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeNodePort })
	made := changed.DeepCopy()
	made.ObjectMeta = metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-made"}
	made.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Selector: changed.Spec.Selector,
		Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 5432, TargetPort: intstr.FromInt32(5432)}},
	}
	s.sleeps(c)
	s.awaitSlices(c, toSettle, "rw", "r", "changed")

	s.must(kube.Patch(s.ctx, changed, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"externalTrafficPolicy":"Local"}}`))))
	s.must(kube.Create(s.ctx, made))
	_, err := kube.AwaitEventSaying(s.ctx, c, "ServiceUnroutable", "The cluster sleeps, and ", toSettle)
	s.must(err)
	s.awaitSlices(c, toSettle, "rw", "r", "changed", "made")
	// kube-proxy learns of a Service and of its slices one after the other. A bare connect wakes nothing.
	_, err = kube.Client(s.ctx, s.namespace, fmt.Sprintf("until : 2>/dev/null >/dev/tcp/%s/5432; do sleep 0.1; done", s.address(c, "made")))
	s.must(err)
	answers := make(chan error, 2) // both are held at once, because a cluster that was woken stays awake
	for _, service := range []string{"changed", "made"} {
		go func() {
			answer, err := kube.QueryAs(s.ctx, c, service, fromAfar, "select 'answered ' || pg_is_in_recovery()")
			if err == nil && answer != "answered false" {
				err = fmt.Errorf("the answer through %s is %q", service, answer)
			}
			answers <- err
		}()
	}
	s.must(<-answers)
	s.must(<-answers)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, toSettle)
}
