package tests

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// IPv6 clients count: even short sessions keep the cluster awake, and they wake it, through a dual-stack and an IPv6-only
// Service.
func TestWakeOverIPv6(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.needBothFamilies()
	c := kube.NewCluster(s.namespace, "reached", 1, never)
	c.Spec.Managed = &cnpgv1.ManagedConfiguration{Services: &cnpgv1.ManagedServices{Additional: []cnpgv1.ManagedService{
		service("reached-both", corev1.IPv6Protocol, corev1.IPv4Protocol), service("reached-six", corev1.IPv6Protocol),
	}}}
	s.running(c)
	s.answers(c, s.overIPv6(c, "both"))
	s.answers(c, s.overIPv6(c, "six")) // kube-proxy learns of each Service separately
	for _, through := range []string{"both", "six"} {
		over := s.overIPv6(c, through)
		before, after := s.shortSessions(c, over+" sslmode=disable", over+" sslmode=require", over+" sslmode=disable")
		s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		s.asleepOnTime(c, before, after, threshold)
		s.annotate(c, scenario.InactivityMinutes, never)
		s.awaitSlices(c, toSettle, "rw", "r", "both", "six")
		s.leadInEveryFamily(c, "both")
		s.leadInEveryFamily(c, "six")

		start := time.Now()
		answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+over, "select 'answered ' || host(inet_client_addr()) || ' ' || pg_is_in_recovery()")
		s.must(err)
		t.Logf("%q after %.2fs through %s", answer, time.Since(start).Seconds(), through)
		if !strings.HasPrefix(answer, "answered ") || !strings.HasSuffix(answer, " false") {
			t.Errorf("the answer is %q", answer)
		}
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
		s.tellsWho(c, s.clientOverIPv6(), over)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, toSettle)
		for _, other := range []string{"both", "six"} {
			if _, err := kube.QueryAs(s.ctx, c, "rw", s.overIPv6(c, other), "select 1"); err != nil {
				t.Errorf("awake, through %s: %v", other, err)
			}
		}
	}
}

// needBothFamilies skips the test if the API server does not support dual-stack Services.
func (s *story) needBothFamilies() {
	s.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	probe := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "probe"},
		Spec:       corev1.ServiceSpec{IPFamilyPolicy: &both, Ports: []corev1.ServicePort{{Port: 5432}}},
	}
	err := kube.Create(s.ctx, probe, client.DryRunAll)
	if apierrors.IsInvalid(err) {
		s.Skipf("Services have addresses of one family here (`cluster up -ip-family dual` makes a cluster of both): %v", err)
	}
	s.must(err)
}

// service is an additional Service of a cluster's primary with these address families.
func service(name string, families ...corev1.IPFamily) cnpgv1.ManagedService {
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	return cnpgv1.ManagedService{
		SelectorType: cnpgv1.ServiceSelectorTypeRW,
		ServiceTemplate: cnpgv1.ServiceTemplateSpec{
			ObjectMeta: cnpgv1.Metadata{Name: name},
			Spec:       corev1.ServiceSpec{IPFamilyPolicy: &policy, IPFamilies: families},
		},
	}
}

// overIPv6 returns the settings of a client that connects to a Service of the cluster by its IPv6 address.
func (s *story) overIPv6(c *cnpgv1.Cluster, service string) string {
	s.Helper()
	address := s.address(c, service)
	if parsed, err := netip.ParseAddr(address); err != nil || !parsed.Is6() {
		s.Fatalf("the address of %s-%s is %q, want one of IPv6 (%v)", c.Name, service, address, err)
	}
	return "hostaddr=" + address
}

// clientOverIPv6 returns the client's own IPv6 address.
func (s *story) clientOverIPv6() string {
	s.Helper()
	pod := s.client()
	for _, ip := range pod.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil && address.Is6() {
			return ip.IP
		}
	}
	s.Fatalf("the client has the addresses %v only", pod.Status.PodIPs)
	return ""
}

// leadInEveryFamily waits until each replica of the gateway has one EndpointSlice for every address family of the Service: they are
// made one after the other. It checks that each has the name of the Service's port, without which kube-proxy would ignore it.
func (s *story) leadInEveryFamily(c *cnpgv1.Cluster, suffix string) {
	s.Helper()
	var of corev1.Service
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-" + suffix}, &of))
	want := slices.Sorted(slices.Values(of.Spec.IPFamilies))
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		families := s.familiesLed(c, &of)
		incomplete := func(replica string) bool { return !slices.Equal(slices.Sorted(slices.Values(families[replica])), want) }
		if len(families) != 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(families)), incomplete) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the replicas have EndpointSlices for %s in the families %v, want %v", of.Name, families, want)
		}
	}
}

// familiesLed returns in which address families each replica of the gateway stands before the Service.
func (s *story) familiesLed(c *cnpgv1.Cluster, of *corev1.Service) map[string][]corev1.IPFamily {
	s.Helper()
	var list discoveryv1.EndpointSliceList
	s.must(kube.List(s.ctx, &list, client.InNamespace(c.Namespace), client.MatchingLabels{
		discoveryv1.LabelManagedBy: gatewaySlices, discoveryv1.LabelServiceName: of.Name,
	}))
	families := map[string][]corev1.IPFamily{}
	for _, slice := range list.Items {
		replica := slice.Labels["scale-to-zero.cnpg-i.io/pod"]
		families[replica] = append(families[replica], corev1.IPFamily(slice.AddressType))
		address, err := netip.ParseAddr(slice.Endpoints[0].Addresses[0])
		if err != nil || address.Is6() != (slice.AddressType == discoveryv1.AddressTypeIPv6) {
			s.Errorf("EndpointSlice %s of type %s has the address %s (%v)", slice.Name, slice.AddressType, slice.Endpoints[0].Addresses[0], err)
		}
		if len(slice.Ports) != 1 || *slice.Ports[0].Name != of.Spec.Ports[0].Name {
			s.Errorf("%s has the ports %v, want one named %q", slice.Name, slice.Ports, of.Spec.Ports[0].Name)
		}
	}
	return families
}

// judgedClients returns how many sessions the primary's sidecar has judged as clients' by the kernel's reports.
func (s *story) judgedClients(c *cnpgv1.Cluster) int {
	s.Helper()
	count := 0
	for line := range strings.Lines(s.metrics(c.Status.CurrentPrimary)) {
		for _, verdict := range []string{"client", "unseen"} {
			name := fmt.Sprintf("cnpg_scale_to_zero_socket_events_total{cluster=%q,verdict=%q} ", c.Name, verdict)
			if value, is := strings.CutPrefix(line, name); is {
				number, err := strconv.Atoi(strings.TrimSpace(value))
				s.must(err)
				count += number
			}
		}
	}
	return count
}
