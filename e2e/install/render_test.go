package install

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden file anew")

// What is installed is reviewed as a whole.
func TestRenderedManifests(t *testing.T) {
	t.Parallel()
	got, err := Render("../../manifests/install", "example.org/team", "v1")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "testdata/install.yaml", got)
	if strings.Count(string(got), "image: example.org/team/cnpg-i-scale-to-zero:v1\n") != 2 ||
		!strings.Contains(string(got), "value: example.org/team/cnpg-i-scale-to-zero-sidecar:v1\n") {
		t.Error("not every image has the name that was asked for")
	}
}

// compare holds what was rendered against the golden file.
func compare(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the rendered manifests differ from %s; go test -update writes it anew", golden)
	}
}

// The plugin goes into the pod of the operator as that is released.
func TestRenderedInOperator(t *testing.T) {
	t.Parallel()
	got, err := RenderInOperator("../../manifests/components/operator-socket", releasedOperator(t), "example.org/team", "v1")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "testdata/operator-socket.yaml", got)
	if strings.Count(string(got), "image: example.org/team/cnpg-i-scale-to-zero:v1\n") != 1 ||
		!strings.Contains(string(got), "value: example.org/team/cnpg-i-scale-to-zero-sidecar:v1\n") {
		t.Error("not every image has the name that was asked for")
	}
}

// releasedOperator is the operator's Deployment as it is released.
func releasedOperator(t *testing.T) []byte {
	t.Helper()
	deployment, err := ReleasedOperator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return deployment
}

// with is the base with a component.
func with(t *testing.T, component string) string {
	t.Helper()
	got, err := With("../../manifests", "example.org/team", "v1", component)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// The component of all policies brings its three parts along.
func TestPoliciesComponent(t *testing.T) {
	t.Parallel()
	got := with(t, "policies")
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		if count := strings.Count(got, "\nkind: "+kind+"\n"); count != 19 {
			t.Errorf("%d of kind %s, want 19", count, kind)
		}
	}
}

// The component of network policies brings two.
func TestNetworkPolicyComponent(t *testing.T) {
	t.Parallel()
	compare(t, "testdata/network-policy.yaml", only(with(t, "network-policy"), "NetworkPolicy"))
}

// The example for instances names everybody whom it lets in: one rule for all pods would make the others mean nothing.
func TestTheInstancesAdmitNobodyUnnamed(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("../../manifests/components/network-policy/instances.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var policy networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict(body, &policy); err != nil {
		t.Fatal(err)
	}
	named := func(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) != 0 }
	for i, rule := range policy.Spec.Ingress {
		if len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(from networkingv1.NetworkPolicyPeer) bool {
			return !named(from.PodSelector) && !named(from.NamespaceSelector)
		}) {
			t.Errorf("rule %d lets every pod in", i+1)
		}
	}
}

// only are the documents of those kinds.
func only(rendered string, kinds ...string) []byte {
	var found []string
	for document := range strings.SplitSeq(rendered, "---\n") {
		if slices.ContainsFunc(kinds, func(kind string) bool { return strings.Contains(document, "\nkind: "+kind+"\n") }) {
			found = append(found, document)
		}
	}
	return []byte(strings.Join(found, "---\n"))
}

// The component of cert-manager has the Secrets made that the plugin mounts and its Service names.
func TestCertManagerComponent(t *testing.T) {
	t.Parallel()
	got := with(t, "cert-manager")
	compare(t, "testdata/cert-manager.yaml", only(got, "Issuer", "Certificate"))
	for _, secret := range []string{"scaletozero-server-tls", "scaletozero-client-tls"} {
		if strings.Count(got, "secretName: "+secret+"\n") != 2 || !strings.Contains(got, "Secret: "+secret+"\n") {
			t.Errorf("%s is not made, mounted and named once each", secret)
		}
	}
}

// The component of the priority gives it to the plugin's pods.
func TestPriorityComponent(t *testing.T) {
	t.Parallel()
	if got := with(t, "priority"); strings.Count(got, "\n      priorityClassName: system-cluster-critical\n") != 1 {
		t.Errorf("the class is not there once:\n%s", got)
	}
}
