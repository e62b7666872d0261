package install

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const (
	installation, monitoring = "../../docs/guides/install.md", "../../docs/guides/monitoring.md"
	// ours is how a page names a directory of this repository.
	ours = "https://github.com/cnpg-i/scale-to-zero//"
)

var (
	fenced   = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	remote   = regexp.MustCompile(regexp.QuoteMeta(ours) + `([a-z/-]+)\?ref=main`)
	operator = regexp.MustCompile(`https://raw\.githubusercontent\.com/cloudnative-pg/\S+/cnpg-\S+\.yaml`)
)

// documented returns a page's kustomizations, rendered with this repository's files in place of the published ones that they name.
func documented(t *testing.T, page string) []string {
	t.Helper()
	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	released, err := os.ReadFile("testdata/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rendered []string
	for _, block := range fenced.FindAllStringSubmatch(string(body), -1) {
		if !strings.Contains(block[1], "kind: Kustomization\n") {
			continue
		}
		directory := t.TempDir()
		root, err := relativeTo(directory, "../..")
		if err != nil {
			t.Fatal(err)
		}
		text := remote.ReplaceAllString(block[1], root+"/$1")
		text = operator.ReplaceAllLiteralString(text, "operator.yaml")
		if strings.Contains(text, "://") {
			t.Fatalf("%s: the example asks for what is not in this repository:\n%s", page, text)
		}
		for name, content := range map[string][]byte{"kustomization.yaml": []byte(text), "operator.yaml": releasedOperator(t), "install.yaml": released} {
			if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Build(directory)
		if err != nil {
			t.Fatalf("%s: %v", page, err)
		}
		rendered = append(rendered, string(got))
	}
	return rendered
}

// images are those of our containers and of the sidecar, as a rendering names them.
func images(t *testing.T, rendered string) (containers, sidecars []string) {
	t.Helper()
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		if !strings.Contains("\n"+document, "\nkind: Deployment\n") {
			continue
		}
		var deployment appsv1.Deployment
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil {
			t.Fatal(err)
		}
		pod := deployment.Spec.Template.Spec
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if c.Name != "manager" { // the operator's
				containers = append(containers, c.Image)
			}
			at := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "SIDECAR_IMAGE" })
			if at >= 0 {
				sidecars = append(sidecars, c.Env[at].Value)
			}
		}
	}
	return containers, sidecars
}

// TestTheDocumentedOverlays renders the examples of the pages: every image in them has a name.
func TestTheDocumentedOverlays(t *testing.T) {
	t.Parallel()
	const registry = "registry.example.org/team/"
	overlays := documented(t, installation)
	if len(overlays) != 2 {
		t.Fatalf("%s has %d kustomizations, want one of the base and one of the operator's pod", installation, len(overlays))
	}
	for i, component := range []string{"\nkind: Certificate\n", "\n  name: cnpg-scale-to-zero-operator\n"} {
		containers, sidecars := images(t, overlays[i])
		if !slices.Equal(containers, []string{registry + "cnpg-i-scale-to-zero:v0.1.0"}) ||
			!slices.Equal(sidecars, []string{registry + "cnpg-i-scale-to-zero-sidecar:v0.1.0"}) {
			t.Errorf("kustomization %d: the containers have %q, the sidecar %q", i+1, containers, sidecars)
		}
		for _, part := range []string{component, "\nkind: ValidatingAdmissionPolicy\n"} {
			if !strings.Contains(overlays[i], part) {
				t.Errorf("kustomization %d renders nothing with %q", i+1, part)
			}
		}
	}
}

// TestTheDocumentedMonitoring adds the component to a release's install.yaml, whose images stay.
func TestTheDocumentedMonitoring(t *testing.T) {
	t.Parallel()
	overlays := documented(t, monitoring)
	if len(overlays) != 1 || !strings.Contains(overlays[0], "\nkind: PrometheusRule\n") {
		t.Fatalf("%s has %d kustomizations, want one with the rules", monitoring, len(overlays))
	}
	containers, sidecars := images(t, overlays[0])
	const plugin = "example.org/team/cnpg-i-scale-to-zero:v1"
	if !slices.Equal(containers, []string{plugin, plugin}) || !slices.Equal(sidecars, []string{"example.org/team/cnpg-i-scale-to-zero-sidecar:v1"}) {
		t.Errorf("the containers have %q, the sidecar %q", containers, sidecars)
	}
}
