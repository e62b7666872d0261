package install

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

// with renders the base with a component.
func with(t *testing.T, component string) string {
	t.Helper()
	directory, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Rel(directory, filepath.Join(here, "..", "..", "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	body := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + manifests + "/base]\n" +
		"components: [" + manifests + "/components/" + component + "]\n"
	if err := os.WriteFile(filepath.Join(directory, "kustomization.yaml"), []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Render(directory, "example.org/team", "v1")
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// The component of all policies brings its two parts along.
func TestPoliciesComponent(t *testing.T) {
	t.Parallel()
	got := with(t, "policies")
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		if count := strings.Count(got, "\nkind: "+kind+"\n"); count != 4 {
			t.Errorf("%d of kind %s, want 4", count, kind)
		}
	}
}

// The component of network policies brings two.
func TestNetworkPolicyComponent(t *testing.T) {
	t.Parallel()
	var policies []string
	for document := range strings.SplitSeq(with(t, "network-policy"), "---\n") {
		if strings.Contains(document, "\nkind: NetworkPolicy\n") {
			policies = append(policies, document)
		}
	}
	compare(t, "testdata/network-policy.yaml", []byte(strings.Join(policies, "---\n")))
}

// The component of the priority gives it to the plugin's pods.
func TestPriorityComponent(t *testing.T) {
	t.Parallel()
	if got := with(t, "priority"); strings.Count(got, "\n      priorityClassName: system-cluster-critical\n") != 1 {
		t.Errorf("the class is not there once:\n%s", got)
	}
}
