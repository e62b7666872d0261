package endpointslice

import (
	"net/netip"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func cluster(instances int) *cnpgv1.Cluster {
	return &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "cluster"},
		Spec:       cnpgv1.ClusterSpec{Instances: instances, ImageName: "example.org/postgresql:17.5"},
		Status:     cnpgv1.ClusterStatus{CurrentPrimary: "orders-1", TargetPrimary: "orders-1"},
	}
}

// made is the Service as the operator and the API server leave it.
func made(service *corev1.Service) *corev1.Service {
	service.UID = "service"
	service.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: "orders", UID: "cluster"}}
	service.Spec.ClusterIP, service.Spec.ClusterIPs = "10.96.0.5", []string{"10.96.0.5"}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	return service
}

func TestSelects(t *testing.T) {
	t.Parallel()
	pod := func(name, role string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{LabelCluster: "orders", LabelPodRole: "instance"}, OwnerReferences: ofOrders}}
		if role != "" {
			p.Labels[LabelInstanceRole], p.Labels["role"] = role, role
		}
		return p
	}
	pooler := pod("pooler-1", "")
	pooler.Labels[LabelPodRole] = "pooler"
	failover := func(c *cnpgv1.Cluster) { c.Status.TargetPrimary = "orders-2" }
	same := func(*cnpgv1.Cluster) {}
	for _, row := range []struct {
		rule       string
		pod        *corev1.Pod
		change     func(*cnpgv1.Cluster)
		rw, ro, rd bool
	}{
		{"a primary is behind -rw and -r", pod("orders-2", "primary"), same, true, false, true},
		{"a replica is behind -ro and -r", pod("orders-1", "replica"), same, false, true, true},
		{"the current primary will be labelled so", pod("orders-1", ""), same, true, false, true},
		{"another instance will be a replica", pod("orders-2", ""), same, false, true, true},
		{"during a failover nothing is foretold", pod("orders-1", ""), failover, false, false, false},
		{"a label that is there counts during a failover too", pod("orders-1", "primary"), failover, true, false, true},
		{"a pooler is behind none", pooler, same, false, false, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			c := cluster(2)
			row.change(c)
			got := [3]bool{
				Selects(specs.CreateClusterReadWriteService(*c), row.pod, c), Selects(specs.CreateClusterReadOnlyService(*c), row.pod, c),
				Selects(specs.CreateClusterReadService(*c), row.pod, c),
			}
			if want := [3]bool{row.rw, row.ro, row.rd}; got != want {
				t.Errorf("behind -rw, -ro, -r: %v, want %v", got, want)
			}
		})
	}
}

var replica = Replica{
	Namespace: "system", Pod: "scale-to-zero-1", UID: "pod", Node: "node-a",
	Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
}

func TestWanted(t *testing.T) {
	t.Parallel()
	service := made(specs.CreateClusterReadWriteService(*cluster(1)))
	service.Namespace = "shop"
	service.Spec.Ports = append(service.Spec.Ports,
		corev1.ServicePort{Name: "metrics", Port: 9187, TargetPort: intstr.FromInt32(9187)},
		corev1.ServicePort{Name: "other", Port: 6432, TargetPort: intstr.FromString("postgresql")})
	got := Wanted(service, "orders", replica, 10007)
	want := []discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: got[0].Name,
			Labels: map[string]string{
				"kubernetes.io/service-name": "orders-rw", "endpointslice.kubernetes.io/managed-by": "scale-to-zero.cnpg-i.io",
				"cnpg.io/cluster": "orders", LabelReplica: "pod", LabelPod: "scale-to-zero-1",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "orders-rw", UID: "service"}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.7"}, NodeName: ptr.To("node-a"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		}},
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("postgres"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(10007))},
			{Name: ptr.To("other"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(10007))},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("slices (-want +got):\n%s", diff)
	}
	if s := &got[0]; !IsOurs(s) || ReplicaOf(s) != "pod" || ServiceOf(s) != "service" || PortOf(s) != 10007 {
		t.Error("a slice is not read as it was written")
	}
}

func TestWantedFamilies(t *testing.T) {
	t.Parallel()
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	for _, row := range []struct {
		rule     string
		families []corev1.IPFamily
		pod      []netip.Addr
		want     []discoveryv1.AddressType
	}{
		{"a Service of both families gets both", []corev1.IPFamily{v4, v6}, replica.Addresses, []discoveryv1.AddressType{"IPv4", "IPv6"}},
		{"a Service of one family gets that", []corev1.IPFamily{v6}, replica.Addresses, []discoveryv1.AddressType{"IPv6"}},
		{"a family that the pod has not is left out", []corev1.IPFamily{v4, v6}, replica.Addresses[:1], []discoveryv1.AddressType{"IPv4"}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			service := made(specs.CreateClusterReadWriteService(*cluster(1)))
			service.Name = strings.Repeat("long-", 12) + "rw" // 62 characters
			service.Spec.IPFamilies = row.families
			pod := replica
			pod.Addresses = row.pod
			var got []discoveryv1.AddressType
			names := map[string]bool{}
			for _, slice := range Wanted(service, "orders", pod, 10007) {
				got = append(got, slice.AddressType)
				names[slice.Name] = true
				if len(slice.Name) > 63 {
					t.Errorf("the name %s has %d characters", slice.Name, len(slice.Name))
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" || len(names) != len(got) {
				t.Errorf("%d names, families (-want +got):\n%s", len(names), diff)
			}
		})
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	service := made(specs.CreateClusterReadWriteService(*cluster(1)))
	want := Wanted(service, "orders", replica, 10007)[0]
	for _, row := range []struct {
		rule   string
		change func(*discoveryv1.EndpointSlice)
		same   bool
	}{
		{"what others add does not matter", func(s *discoveryv1.EndpointSlice) { s.Labels["team"] = "x"; s.Generation = 7 }, true},
		{"another port does", func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = ptr.To(int32(1)) }, false},
		{"another address does", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.0.0.8"} }, false},
		{"a lost label does", func(s *discoveryv1.EndpointSlice) { delete(s.Labels, discoveryv1.LabelServiceName) }, false},
		{"a lost owner does", func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			have := want.DeepCopy()
			row.change(have)
			if got := Same(have, &want); got != row.same {
				t.Fatalf("got %t, want %t", got, row.same)
			}
			Update(have, &want)
			if !Same(have, &want) {
				t.Error("mending does not mend")
			}
		})
	}
}

func TestReadyAndAddresses(t *testing.T) {
	t.Parallel()
	service := made(specs.CreateClusterReadWriteService(*cluster(1)))
	ours := Wanted(service, "orders", replica, 10007)
	own := func(ready *bool) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "orders-rw", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}},
		}
	}
	other := own(ptr.To(true))
	other.Labels[discoveryv1.LabelServiceName] = "orders-r"
	for rule, row := range map[string]struct {
		slice discoveryv1.EndpointSlice
		ready int
	}{
		"a ready endpoint counts":                {own(ptr.To(true)), 1},
		"readiness that is not given is ready":   {own(nil), 1},
		"one that is not ready does not":         {own(ptr.To(false)), 0},
		"one of another Service does not":        {other, 0},
		"our own slices are not the Service's":   {ours[0], 0},
		"a Service without endpoints is unready": {discoveryv1.EndpointSlice{}, 0},
	} {
		if got := Ready(service, []discoveryv1.EndpointSlice{row.slice}); len(got) != row.ready {
			t.Errorf("%s: got %v", rule, got)
		}
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.5:5432")}
	if diff := cmp.Diff(want, Addresses(service), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestServesAll(t *testing.T) {
	t.Parallel()
	service := made(specs.CreateClusterReadWriteService(*cluster(1)))
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	ours := Wanted(service, "orders", replica, 10000)
	own := func(ready bool, address string) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
	}
	const v4, v6 = "10.0.0.1", "fd00::1"
	for _, row := range []struct {
		rule   string
		slices []discoveryv1.EndpointSlice
		want   bool
	}{
		{"endpoints of both families are enough", append(ours[:2:2], own(true, v4), own(true, v6)), true},
		{"those of one are not where we lead in both", append(ours[:2:2], own(true, v4)), false},
		{"nor is one that is not ready", append(ours[:2:2], own(true, v4), own(false, v6)), false},
		{"they are where we lead in that one", append(ours[:1:1], own(true, v4)), true},
		{"and where we do not lead", []discoveryv1.EndpointSlice{own(true, v6)}, true},
		{"none is not", nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := ServesAll(service, row.slices); got != row.want {
				t.Errorf("got %t, want %t", got, row.want)
			}
		})
	}
}
