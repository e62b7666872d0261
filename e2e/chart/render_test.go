package chart

import (
	"bytes"
	stdcmp "cmp"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
)

const (
	directory, manifests = "../../manifests/chart", "../../manifests"
	registry, tag        = "example.org/team", "v1"
)

// Helm logs each link that it follows.
func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// set makes values out of lines as `helm --set-json` has them: key.of.a.value=JSON.
func set(t *testing.T, lines ...string) map[string]any {
	t.Helper()
	values := map[string]any{"image": map[string]any{"registry": registry, "tag": tag}, "sidecarImage": map[string]any{"tag": tag}}
	for _, line := range lines {
		path, text, found := strings.Cut(line, "=")
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil || !found {
			t.Fatalf("%s: %v", line, err)
		}
		keys := strings.Split(path, ".")
		at := values
		for _, key := range keys[:len(keys)-1] {
			if _, ok := at[key].(map[string]any); !ok {
				at[key] = map[string]any{}
			}
			at = at[key].(map[string]any)
		}
		at[keys[len(keys)-1]] = value
	}
	return values
}

// rendered are the chart's objects by kind and name, without its own labels and without its hooks.
func rendered(t *testing.T, namespace string, values map[string]any) map[string]unstructured.Unstructured {
	t.Helper()
	loaded, err := Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	release, err := Render(t.Context(), loaded, namespace, values)
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, []byte(release.Manifest))
	for name, object := range found {
		labels := object.GetLabels()
		for _, own := range []string{
			"helm.sh/chart", "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by",
		} {
			if labels[own] == "" {
				t.Errorf("%s has no label %s", name, own)
			}
			delete(labels, own)
		}
		if len(labels) == 0 {
			labels = nil
		}
		object.SetLabels(labels)
	}
	return found
}

// objects are those of a rendering by kind and name.
func objects(t *testing.T, body []byte) map[string]unstructured.Unstructured {
	t.Helper()
	found := map[string]unstructured.Unstructured{}
	for document := range bytes.SplitSeq(append([]byte("\n"), body...), []byte("\n---\n")) {
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(object.Object) == 0 {
			continue
		}
		name := object.GetKind() + " " + object.GetName()
		if _, twice := found[name]; twice {
			t.Errorf("%s is there twice", name)
		}
		found[name] = object
	}
	return found
}

// kustomized are the objects of a kustomization of the repository's manifests.
func kustomized(t *testing.T, kustomization string) map[string]unstructured.Unstructured {
	t.Helper()
	directory, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(manifests)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(directory, absolute)
	if err != nil {
		t.Fatal(err)
	}
	body := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" + strings.ReplaceAll(kustomization, "MANIFESTS", relative)
	if err := os.WriteFile(filepath.Join(directory, "kustomization.yaml"), []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := install.Render(directory, registry, tag)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, got)
}

// same compares the chart's objects with those of kustomize.
func same(t *testing.T, chart, kustomize map[string]unstructured.Unstructured) {
	t.Helper()
	if names := cmp.Diff(slices.Sorted(maps.Keys(kustomize)), slices.Sorted(maps.Keys(chart))); names != "" {
		t.Errorf("the objects differ (- kustomize, + chart):\n%s", names)
	}
	for name, object := range kustomize {
		if strings.HasPrefix(name, "ValidatingAdmissionPolicy") {
			object.SetNamespace("") // kustomize takes these kinds for namespaced ones; the API server drops it
		}
		got, ok := chart[name]
		if !ok {
			continue
		}
		if diff := cmp.Diff(plain(t, object), plain(t, got), anyOrder); diff != "" {
			t.Errorf("%s differs (- kustomize, + chart):\n%s", name, diff)
		}
	}
}

// anyOrder is that of named things in lists, such as the variables of an environment: patches of kustomize change it.
var anyOrder = cmpopts.SortSlices(func(a, b any) bool {
	name := func(v any) string {
		named, _ := v.(map[string]any)
		text, _ := named["name"].(string)
		return text
	}
	return name(a) < name(b)
})

// plain converts an object to what its YAML decodes to, so that equal numbers have the same type.
func plain(t *testing.T, object unstructured.Unstructured) map[string]any {
	t.Helper()
	body, err := yaml.Marshal(object.Object)
	if err != nil {
		t.Fatal(err)
	}
	var decoded map[string]any
	if err := yaml.Unmarshal(body, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

// What the chart installs is what kustomize installs.
func TestRender_isWhatKustomizeGives(t *testing.T) {
	t.Parallel()
	const base = "resources: [MANIFESTS/base]\n"
	components := func(names ...string) string {
		text := "components:\n"
		for _, name := range names {
			text += "  - MANIFESTS/components/" + name + "\n"
		}
		return text
	}
	for _, row := range []struct {
		rule, namespace string
		values          []string
		kustomization   string
	}{
		{rule: "the default is install.yaml", kustomization: "resources: [MANIFESTS/install]\n"},
		{
			rule: "certificates by cert-manager", values: []string{"certificate.provider=cert-manager"},
			kustomization: base + components("cert-manager", "policies/instances", "policies/plugin"),
		},
		{
			rule: "no certificates and no policies", values: []string{"certificate.provider=none", "policies.instances=false", "policies.plugin=false"},
			kustomization: base,
		},
		{
			// kustomize does not know yet that a MutatingAdmissionPolicy has no namespace, so not in another one.
			rule:          "the enrolment of new clusters",
			values:        []string{"policies.instances=false", "policies.plugin=false", "policies.enrolment=true"},
			kustomization: base + components("self-provisioned-certificates", "enrolment"),
		},
		{
			rule:          "both policies",
			values:        []string{"policies.annotations=true"},
			kustomization: base + components("self-provisioned-certificates", "policies"),
		},
		{
			rule: "monitoring",
			values: []string{
				"certificate.provider=none", "policies.instances=false", "policies.plugin=false", "monitoring.monitorsEnabled=true", "monitoring.rulesEnabled=true",
				"monitoring.grafanaDashboard.create=true",
			},
			kustomization: base + components("monitoring"),
		},
		{
			rule:          "network policies",
			values:        []string{"certificate.provider=none", "policies.instances=false", "policies.plugin=false", "networkPolicy.enabled=true"},
			kustomization: base + components("network-policy"),
		},
		{
			rule: "the wake endpoint",
			values: []string{
				"certificate.provider=cert-manager", "policies.instances=false", "policies.plugin=false", "networkPolicy.enabled=true",
				"wakeEndpoint.enabled=true",
			},
			kustomization: base + components("cert-manager", "network-policy", "wake-endpoint"),
		},
		{
			rule: "the wake endpoint in another namespace, with certificates of its own making", namespace: "postgres-operators",
			values:        []string{"policies.instances=false", "policies.plugin=false", "wakeEndpoint.enabled=true"},
			kustomization: "namespace: postgres-operators\n" + base + components("self-provisioned-certificates", "wake-endpoint"),
		},
		{
			rule:          "a priority",
			values:        []string{"policies.instances=false", "policies.plugin=false", "priorityClassName=system-cluster-critical"},
			kustomization: base + components("self-provisioned-certificates", "priority"),
		},
		{rule: "OpenShift", values: []string{"openshift=true"}, kustomization: "resources: [MANIFESTS/overlays/openshift]\n"},
		{
			rule: "another namespace", namespace: "postgres-operators",
			kustomization: "resources: [MANIFESTS/overlays/namespace]\n",
		},
		{
			rule:          "another namespace than that of the release",
			values:        []string{"namespaceOverride=postgres-operators"},
			kustomization: "resources: [MANIFESTS/overlays/namespace]\n",
		},
		{
			rule: "another namespace with everything", namespace: "postgres-operators",
			values: []string{
				"certificate.provider=cert-manager", "policies.annotations=true", "networkPolicy.enabled=true",
				"monitoring.monitorsEnabled=true", "monitoring.rulesEnabled=true", "monitoring.grafanaDashboard.create=true",
			},
			kustomization: "namespace: postgres-operators\n" + base + components("cert-manager", "policies", "network-policy", "monitoring"),
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			namespace := stdcmp.Or(row.namespace, "cnpg-system")
			same(t, rendered(t, namespace, set(t, row.values...)), kustomized(t, row.kustomization))
		})
	}
}

// An image has the digest that is asked for, and what pulls it the Secrets.
func TestRender_isWhatKustomizeGivesForAPrivateRegistry(t *testing.T) {
	t.Parallel()
	const digest = "sha256:000000000000000000000000000000000000000000000000000000000000000"
	values := set(t, "image.registry=registry.example.org/team", "image.digest="+digest+"1", "sidecarImage.digest="+digest+"2",
		`imagePullSecrets=[{"name":"registry-login"}]`)
	want, err := install.Build(manifests + "/overlays/private-registry")
	if err != nil {
		t.Fatal(err)
	}
	untagged := rendered(t, "cnpg-system", values)
	for name, object := range untagged { // the chart names the tag too, which says what the digest is
		body, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		untagged[name] = objects(t, bytes.ReplaceAll(body, []byte(":v1@"), []byte("@")))[name]
	}
	same(t, untagged, objects(t, want))
}

// With the plugin in the operator's pod the chart has the rest, and its notes have the patch of the operator's Deployment.
func TestRender_isWhatKustomizeGivesForTheOperatorsPod(t *testing.T) {
	t.Parallel()
	operator, err := install.ReleasedOperator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	body, err := install.RenderInOperator(manifests+"/components/operator-socket", operator, registry, tag)
	if err != nil {
		t.Fatal(err)
	}
	want := objects(t, body)
	const deployment = "Deployment cnpg-controller-manager"
	values := set(t, "operatorSocket.enabled=true", "policies.instances=false", "policies.plugin=false")
	got := rendered(t, "cnpg-system", values)
	got[deployment] = patched(t, operator, notes(t, values))
	same(t, got, want)
}

// The policies that limit the plugin know its account, whatever it is called, and limit nobody else's.
func TestRender_limitsThePluginsAccount(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		values []string
		want   string
	}{
		{"by its usual name", nil, "^system:serviceaccount:[^:]+:cnpg-scale-to-zero-plugin$"},
		{"by the name that it is given", []string{"serviceAccount.name=scale.to.zero"}, "^system:serviceaccount:databases:scale[.]to[.]zero$"},
		{"one that is there", []string{"serviceAccount.create=false"}, "^system:serviceaccount:databases:default$"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			policies := 0
			for name, object := range rendered(t, "databases", set(t, row.values...)) {
				if !strings.HasPrefix(name, "ValidatingAdmissionPolicy cnpg-scale-to-zero-plugin-") {
					continue
				}
				policies++
				conditions, _, err := unstructured.NestedSlice(object.Object, "spec", "matchConditions")
				if err != nil || len(conditions) == 0 { // all of them must hold
					t.Fatalf("%s: %v, %v", name, conditions, err)
				}
				condition, _ := conditions[0].(map[string]any)
				if want := "request.userInfo.username.matches('" + row.want + "')"; condition["expression"] != want {
					t.Errorf("%s is for %v, want %s", name, condition["expression"], want)
				}
			}
			if policies == 0 {
				t.Error("there is none")
			}
		})
	}
}

// notes are what Helm prints after the installation.
func notes(t *testing.T, values map[string]any) string {
	t.Helper()
	loaded, err := Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	release, err := Render(t.Context(), loaded, "cnpg-system", values)
	if err != nil {
		t.Fatal(err)
	}
	return release.Info.Notes
}

// patched is a Deployment with the patch that the notes have.
func patched(t *testing.T, deployment []byte, notes string) unstructured.Unstructured {
	t.Helper()
	_, rest, begun := strings.Cut(notes, "\nspec:\n")
	text, _, ended := strings.Cut("spec:\n"+rest, "\n\n")
	if !begun || !ended {
		t.Fatalf("the notes have no patch:\n%s", notes)
	}
	original, err := yaml.YAMLToJSON(deployment)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, appsv1.Deployment{})
	if err != nil {
		t.Fatal(err)
	}
	var object unstructured.Unstructured
	if err := yaml.Unmarshal(merged, &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}
