package monitoring

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
)

// rendered are the documents of what is installed with the component, by kind and name.
func rendered(t *testing.T) map[string][]byte {
	t.Helper()
	directory := t.TempDir()
	manifests, err := filepath.Abs(root + "/manifests")
	if err != nil {
		t.Fatal(err)
	}
	from, err := filepath.EvalSymlinks(directory)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(from, manifests)
	if err != nil {
		t.Fatal(err)
	}
	kustomization := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + relative + "/install]\ncomponents: [" +
		relative + "/components/monitoring]\n"
	if err := os.WriteFile(filepath.Join(directory, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	body, err := install.Render(directory, "example.org/team", "v1")
	if err != nil {
		t.Fatal(err)
	}
	documents := map[string][]byte{}
	for _, document := range bytes.Split(body, []byte("\n---\n")) {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(document, &object); err != nil {
			t.Fatal(err)
		}
		documents[object.Kind+" "+object.Name] = document
	}
	return documents
}

func decode[T any](t *testing.T, documents map[string][]byte, name string) T {
	t.Helper()
	var object T
	if documents[name] == nil {
		t.Fatalf("there is no %s", name)
	}
	if err := yaml.UnmarshalStrict(documents[name], &object); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return object
}

func TestTheComponentRenders(t *testing.T) {
	t.Parallel()
	documents := rendered(t)
	decode[monitoringv1.PrometheusRule](t, documents, "PrometheusRule scale-to-zero")
	grafana := decode[corev1.ConfigMap](t, documents, "ConfigMap scale-to-zero-dashboard")
	want, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if grafana.Namespace != "cnpg-system" || grafana.Labels["grafana_dashboard"] != "1" || grafana.Data["scale-to-zero.json"] != string(want) {
		t.Errorf("the ConfigMap is %s with %v, and has the dashboard: %t", grafana.Namespace, grafana.Labels, grafana.Data["scale-to-zero.json"] == string(want))
	}
}

// selects tells whether a PodMonitor scrapes a pod: by its labels, and a port of that name.
func selects(t *testing.T, monitor monitoringv1.PodMonitor, pod metav1.ObjectMeta, containers []corev1.Container) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(labels.Set(pod.Labels)) || len(monitor.Spec.PodMetricsEndpoints) != 1 {
		return false
	}
	for _, c := range containers {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == *monitor.Spec.PodMetricsEndpoints[0].Port }) {
			return true
		}
	}
	return false
}

func TestThePodsAreScraped(t *testing.T) {
	t.Parallel()
	documents := rendered(t)
	plugin := decode[monitoringv1.PodMonitor](t, documents, "PodMonitor scale-to-zero")
	template := decode[appsv1.Deployment](t, documents, "Deployment scale-to-zero").Spec.Template
	if !selects(t, plugin, template.ObjectMeta, template.Spec.Containers) {
		t.Error("the plugin's pods are not scraped")
	}
	if !plugin.Spec.PodMetricsEndpoints[0].HonorLabels {
		t.Error("the namespaces of the clusters would be overwritten by the plugin's")
	}

	// The golden file is what the CREATE hook makes of an instance's pod; the labels are the operator's (1.30: pkg/specs/pods.go).
	body, err := os.ReadFile(root + "/plugin/lifecycle/testdata/create.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var injected corev1.PodSpec
	if err := yaml.Unmarshal(body, &injected); err != nil {
		t.Fatal(err)
	}
	instance := metav1.ObjectMeta{Labels: map[string]string{"cnpg.io/cluster": "x", "cnpg.io/podRole": "instance"}}
	sidecars := decode[monitoringv1.PodMonitor](t, documents, "PodMonitor scale-to-zero-sidecars")
	if !selects(t, sidecars, instance, injected.Containers) || !sidecars.Spec.NamespaceSelector.Any {
		t.Errorf("the instance's sidecar is not scraped: %v %s", instance.Labels, strings.Join(names(injected.Containers), " "))
	}
	pooler := metav1.ObjectMeta{Labels: map[string]string{"cnpg.io/cluster": "x", "cnpg.io/podRole": "pooler"}}
	if selects(t, sidecars, pooler, injected.Containers) {
		t.Error("a pooler's pod is scraped")
	}
}

func names(containers []corev1.Container) []string {
	var all []string
	for _, c := range containers {
		all = append(all, c.Name)
	}
	return all
}
