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
	"sigs.k8s.io/yaml"

	"github.com/cnpg-i/scale-to-zero/e2e/install"
)

// inOperator is the operator's Deployment as the plugin is put into its pod, with what comes along; a test beside it holds it to
// the component.
const inOperator = "e2e/install/testdata/operator-socket.yaml"

// rendered are the documents of what is installed with the component, by kind and name.
func rendered(t *testing.T, installation string) map[string][]byte {
	t.Helper()
	directory := t.TempDir()
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	from, err := filepath.EvalSymlinks(directory)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(from, repository)
	if err != nil {
		t.Fatal(err)
	}
	kustomization := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + relative + "/" + installation + "]\ncomponents: [" +
		relative + "/manifests/components/monitoring]\n"
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
	documents := rendered(t, "manifests/install")
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

// targets are what a monitor scrapes of a pod, as "container:port".
func targets(monitor Monitor, services []corev1.Service, object metav1.ObjectMeta, spec corev1.PodSpec) []string {
	object.Name = "x"
	pod := corev1.Pod{ObjectMeta: object, Spec: spec, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}}
	found := []string{}
	for _, group := range monitor.Targets(Access{}, services, []corev1.Pod{pod}) {
		found = append(found, group.Labels["container"]+strings.TrimPrefix(group.Labels["instance"], pod.Status.PodIP))
	}
	return found
}

// The plugin is scraped wherever it is, by what is shipped, and the operator beside it is left to its own monitor.
func TestThePluginIsScraped(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ installation, deployment, want string }{
		{"manifests/install", "scale-to-zero", "cnpg-i-scale-to-zero:8080"},
		{inOperator, "cnpg-controller-manager", "cnpg-i-scale-to-zero:8081"},
	} {
		t.Run(row.deployment, func(t *testing.T) {
			t.Parallel()
			documents := rendered(t, row.installation)
			monitor, err := readMonitor(documents["ServiceMonitor scale-to-zero"])
			if err != nil {
				t.Fatal(err)
			}
			var services []corev1.Service
			for name := range documents {
				if strings.HasPrefix(name, "Service ") {
					services = append(services, decode[corev1.Service](t, documents, name))
				}
			}
			deployment := decode[appsv1.Deployment](t, documents, "Deployment "+row.deployment)
			template := deployment.Spec.Template
			template.Namespace = deployment.Namespace
			if got := targets(monitor, services, template.ObjectMeta, template.Spec); !slices.Equal(got, []string{row.want}) {
				t.Errorf("%v is scraped, want %s", got, row.want)
			}
			if !monitor.honorLabels {
				t.Error("the namespaces of the clusters would be overwritten by the plugin's")
			}
			// The operator takes a Service with that label for a plugin's.
			if leads := decode[corev1.Service](t, documents, "Service scale-to-zero-metrics"); leads.Labels["cnpg.io/pluginName"] != "" || len(leads.Annotations) != 0 {
				t.Errorf("the Service of the metrics has %v and %v", leads.Labels, leads.Annotations)
			}
		})
	}
}

func TestTheSidecarsAreScraped(t *testing.T) {
	t.Parallel()
	monitor, err := readMonitor(rendered(t, "manifests/install")["PodMonitor scale-to-zero-sidecars"])
	if err != nil {
		t.Fatal(err)
	}
	// The golden file is what the CREATE hook makes of an instance's pod; the labels are the operator's (1.30: pkg/specs/pods.go).
	body, err := os.ReadFile(root + "/plugin/cnpgi/testdata/create.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var injected corev1.PodSpec
	if err := yaml.Unmarshal(body, &injected); err != nil {
		t.Fatal(err)
	}
	instance := metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"cnpg.io/cluster": "x", "cnpg.io/podRole": "instance"}}
	if got := targets(monitor, nil, instance, injected); !slices.Equal(got, []string{"scale-to-zero:9189"}) {
		t.Errorf("%v is scraped of an instance, want its sidecar", got)
	}
	pooler := metav1.ObjectMeta{Namespace: "shop", Labels: map[string]string{"cnpg.io/cluster": "x", "cnpg.io/podRole": "pooler"}}
	if got := targets(monitor, nil, pooler, injected); len(got) != 0 {
		t.Errorf("%v is scraped of a pooler's pod", got)
	}
}
