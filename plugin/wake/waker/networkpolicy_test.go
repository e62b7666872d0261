package waker

import (
	"bytes"
	"net/netip"
	"os"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// target is the primary of the cluster orders.
var target = policyTarget{
	Namespace: "shop", Labels: map[string]string{"cnpg.io/cluster": "orders", "cnpg.io/podRole": "instance"}, Port: 5432, PortName: "postgresql",
}

// read reads the specification of a policy of the namespace.
func read(t testing.TB, namespace, spec string) networkingv1.NetworkPolicy {
	t.Helper()
	policy := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
	if err := yaml.UnmarshalStrict([]byte(spec), &policy.Spec); err != nil {
		t.Fatal(err)
	}
	return policy
}

const instances = "podSelector: {matchLabels: {cnpg.io/podRole: instance}}\n"

func TestAllows_asTheAPIDefines(t *testing.T) {
	t.Parallel()
	web := &clientPod{Namespace: "web", Labels: map[string]string{"app": "web"}, NamespaceLabels: map[string]string{"team": "red"}}
	neighbour := &clientPod{Namespace: "shop", Labels: map[string]string{"app": "web"}, NamespaceLabels: map[string]string{"team": "blue"}}
	from := func(peers string) string { return instances + "ingress: [{from: [" + peers + "]}]" }
	on := func(ports string) string { return instances + "ingress: [{ports: [" + ports + "]}]" }
	for _, row := range []struct {
		rule     string
		policies []string
		address  string
		pod      *clientPod
		want     bool
	}{
		{"without a policy everybody may connect", nil, "10.0.0.9", nil, true},
		{"a policy of other pods holds for none of these", []string{"podSelector: {matchLabels: {app: other}}"}, "10.0.0.9", nil, true},
		{"a policy of egress says nothing of what comes", []string{instances + "policyTypes: [Egress]"}, "10.0.0.9", nil, true},
		{"a policy without rules lets nobody in", []string{instances + "policyTypes: [Ingress]"}, "10.0.0.9", web, false},
		{"one that names no types is one of ingress", []string{instances}, "10.0.0.9", web, false},
		{"one for every pod holds", []string{"podSelector: {}"}, "10.0.0.9", web, false},
		{"an empty rule lets everybody in", []string{instances + "ingress: [{}]"}, "10.0.0.9", nil, true},
		{"what one policy lets in no other bars", []string{instances, instances + "ingress: [{}]"}, "10.0.0.9", nil, true},
		{"one rule of several suffices", []string{instances + "ingress: [{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}, {from: [{ipBlock: {cidr: 10.0.0.0/8}}]}]"}, "10.0.0.9", nil, true},

		{"a block has its addresses", []string{from("{ipBlock: {cidr: 10.0.0.0/8}}")}, "10.0.0.9", nil, true},
		{"also where IPv4 comes as IPv6", []string{from("{ipBlock: {cidr: 10.0.0.0/8}}")}, "::ffff:10.0.0.9", nil, true},
		{"and no others", []string{from("{ipBlock: {cidr: 10.0.0.0/8}}")}, "192.0.2.1", nil, false},
		{"nor those that it excepts", []string{from("{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/24]}}")}, "10.0.0.9", nil, false},
		{"a block of IPv6", []string{from("{ipBlock: {cidr: 'fd00::/8'}}")}, "fd00::9", nil, true},
		{"a block that is none lets nobody in", []string{from("{ipBlock: {cidr: everywhere}}")}, "10.0.0.9", nil, false},

		{"pods are of the policy's own namespace", []string{from("{podSelector: {matchLabels: {app: web}}}")}, "10.0.0.9", neighbour, true},
		{"and of no other", []string{from("{podSelector: {matchLabels: {app: web}}}")}, "10.0.0.9", web, false},
		{"a namespace lets all of its pods in", []string{from("{namespaceSelector: {matchLabels: {team: red}}}")}, "10.0.0.9", web, true},
		{"and those of no other", []string{from("{namespaceSelector: {matchLabels: {team: red}}}")}, "10.0.0.9", neighbour, false},
		{"pods of a namespace must be both", []string{from("{namespaceSelector: {matchLabels: {team: red}}, podSelector: {matchLabels: {app: api}}}")}, "10.0.0.9", web, false},
		{"and are let in if they are", []string{from("{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}")}, "10.0.0.9", web, true},
		{"two peers are alternatives", []string{from("{namespaceSelector: {matchLabels: {team: none}}}, {namespaceSelector: {matchLabels: {team: red}}}")}, "10.0.0.9", web, true},
		{"a block lets no pod in", []string{from("{ipBlock: {cidr: 10.0.0.0/8}}")}, "10.0.0.9", web, false},
		{"who is no pod is in no namespace", []string{from("{namespaceSelector: {}}")}, "10.0.0.9", nil, false},
		{"expressions count", []string{from("{podSelector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}}")}, "10.0.0.9", neighbour, true},
		{"an expression that is none lets nobody in", []string{from("{podSelector: {matchExpressions: [{key: app, operator: Is}]}}")}, "10.0.0.9", neighbour, false},

		{"the port", []string{on("{port: 5432}")}, "10.0.0.9", nil, true},
		{"another port", []string{on("{port: 5433}")}, "10.0.0.9", nil, false},
		{"the port by name", []string{on("{port: postgresql}")}, "10.0.0.9", nil, true},
		{"another by name", []string{on("{port: metrics}")}, "10.0.0.9", nil, false},
		{"a range of ports", []string{on("{port: 5000, endPort: 6000}")}, "10.0.0.9", nil, true},
		{"a range that ends before", []string{on("{port: 5000, endPort: 5431}")}, "10.0.0.9", nil, false},
		{"every port of the protocol", []string{on("{protocol: TCP}")}, "10.0.0.9", nil, true},
		{"another protocol", []string{on("{protocol: UDP, port: 5432}")}, "10.0.0.9", nil, false},
		{"one port of several", []string{on("{port: 9187}, {port: 5432}")}, "10.0.0.9", nil, true},
		{"port and peer must be of one rule", []string{instances + "ingress: [{ports: [{port: 5432}], from: [{ipBlock: {cidr: 192.0.2.0/24}}]}, {ports: [{port: 9187}]}]"}, "10.0.0.9", nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			var policies []networkingv1.NetworkPolicy
			for _, spec := range row.policies {
				policies = append(policies, read(t, "shop", spec))
			}
			if got := allows(policies, target, netip.MustParseAddr(row.address), row.pod); got != row.want {
				t.Errorf("got %t, want %t", got, row.want)
			}
		})
	}
}

func TestAllows_passesOverOtherNamespaces(t *testing.T) {
	t.Parallel()
	if !allows([]networkingv1.NetworkPolicy{read(t, "web", "podSelector: {}")}, target, netip.MustParseAddr("10.0.0.9"), nil) {
		t.Error("a policy of another namespace bars")
	}
}

// The example that this project ships is beside what lets clients in, and takes nothing of that away.
func TestAllows_withTheShippedExample(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("../../../manifests/components/network-policy/instances.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var example networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict(bytes.TrimSpace(body), &example); err != nil {
		t.Fatal(err)
	}
	example.Namespace = "shop"
	clients := read(t, "shop", instances+"ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 5432}]}]")
	web := &clientPod{Namespace: "shop", Labels: map[string]string{"app": "web"}}
	policies := []networkingv1.NetworkPolicy{example, clients}
	if !allows(policies, target, netip.MustParseAddr("10.0.0.9"), web) {
		t.Error("a client that a policy lets in is barred")
	}
	web.Labels = map[string]string{"app": "other"}
	if allows(policies, target, netip.MustParseAddr("10.0.0.9"), web) {
		t.Error("the plugin's own way in is everybody's")
	}
}

// Whatever a policy says, adding one that lets everybody in lets everybody in, and one that isolates never lets more in.
func FuzzAllows(f *testing.F) {
	for _, spec := range []string{instances, instances + "ingress: [{}]", instances + "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/24]}}]}]", "podSelector: {}"} {
		f.Add(spec, "10.0.0.9", "web")
	}
	f.Fuzz(func(t *testing.T, spec, address, app string) {
		peer, err := netip.ParseAddr(address)
		policy := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
		if err != nil || yaml.Unmarshal([]byte(spec), &policy.Spec) != nil {
			t.Skip()
		}
		pod := &clientPod{Namespace: "shop", Labels: map[string]string{"app": app}}
		alone := []networkingv1.NetworkPolicy{policy}
		if allows(alone, target, netip.Addr{}, nil) && !allows(alone, target, peer, pod) {
			t.Error("a pod is barred from where everybody may connect")
		}
		if open := append(alone, read(t, "shop", instances+"ingress: [{}]")); !allows(open, target, peer, pod) {
			t.Error("a policy takes away what another gives")
		}
		if isolated := append(alone, read(t, "shop", instances)); allows(isolated, target, peer, pod) && !allows(alone, target, peer, pod) {
			t.Error("a policy without rules lets somebody in")
		}
	})
}
