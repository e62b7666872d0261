package monitoring

import (
	"errors"
	"fmt"
	"maps"
	"strconv"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// Access is how a Prometheus outside of a Kubernetes cluster reaches the pods: through the API server's proxy.
type Access struct {
	// Host is the API server's host and port.
	Host string
	// Certificates are files, and TokenFile is one; what the API server does not ask for is empty.
	Certificates Certificates
	TokenFile    string
}

// Certificates are files: the API server's authority, and what a client shows.
type Certificates struct {
	CA   string `json:"ca_file,omitempty"`
	Cert string `json:"cert_file,omitempty"`
	Key  string `json:"key_file,omitempty"`
}

// Group is what Prometheus reads of targets from a file.
type Group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Monitor is a PodMonitor or a ServiceMonitor with one endpoint, which is named by its port.
type Monitor struct {
	kind, namespace, name, port string
	services                    bool // it selects Services, and not pods
	everywhere, honorLabels     bool
	selector                    labels.Selector
}

// errEndpoints says that a monitor is another one than these tests understand.
var errEndpoints = errors.New("it must have exactly one endpoint, with the name of a port")

// OfPods is a PodMonitor.
func OfPods(m *monitoringv1.PodMonitor) (Monitor, error) {
	endpoints := m.Spec.PodMetricsEndpoints
	if len(endpoints) != 1 || endpoints[0].Port == nil {
		return Monitor{}, fmt.Errorf("read the PodMonitor %s: %w", m.Name, errEndpoints)
	}
	read := Monitor{
		kind: "podMonitor", namespace: m.Namespace, name: m.Name, port: *endpoints[0].Port,
		everywhere: m.Spec.NamespaceSelector.Any, honorLabels: endpoints[0].HonorLabels,
	}
	return read.selecting(m.Spec.Selector)
}

// OfServices is a ServiceMonitor.
func OfServices(m *monitoringv1.ServiceMonitor) (Monitor, error) {
	endpoints := m.Spec.Endpoints
	if len(endpoints) != 1 || endpoints[0].Port == "" {
		return Monitor{}, fmt.Errorf("read the ServiceMonitor %s: %w", m.Name, errEndpoints)
	}
	read := Monitor{
		kind: "serviceMonitor", namespace: m.Namespace, name: m.Name, port: endpoints[0].Port, services: true,
		everywhere: m.Spec.NamespaceSelector.Any, honorLabels: endpoints[0].HonorLabels,
	}
	return read.selecting(m.Spec.Selector)
}

func (m Monitor) selecting(by metav1.LabelSelector) (Monitor, error) {
	selector, err := metav1.LabelSelectorAsSelector(&by)
	if err != nil {
		return Monitor{}, fmt.Errorf("read the selector of the %s %s: %w", m.kind, m.name, err)
	}
	m.selector = selector
	return m, nil
}

// TargetsFile is the name of the file that the monitor's targets are read from.
func (m Monitor) TargetsFile() string {
	return "targets-" + m.kind + "-" + m.namespace + "-" + m.name + ".json"
}

// Configuration is a Prometheus configuration with the rules of a file, a job for each monitor, and the address of an Alertmanager,
// empty for none. The interval is Prometheus' own notation.
func Configuration(monitors []Monitor, access Access, rulesFile, interval, alertmanager string) ([]byte, error) {
	jobs := make([]map[string]any, 0, len(monitors))
	for _, monitor := range monitors {
		job := map[string]any{
			"job_name": monitor.kind + "/" + monitor.namespace + "/" + monitor.name + "/0", "honor_labels": monitor.honorLabels,
			"scheme": "https", "tls_config": access.Certificates,
			"file_sd_configs": []any{map[string]any{"files": []string{monitor.TargetsFile()}}},
		}
		if access.TokenFile != "" {
			job["authorization"] = map[string]any{"credentials_file": access.TokenFile}
		}
		jobs = append(jobs, job)
	}
	alerting := map[string]any{}
	if alertmanager != "" {
		alerting["alertmanagers"] = []any{map[string]any{"static_configs": []any{map[string]any{"targets": []string{alertmanager}}}}}
	}
	body, err := yaml.Marshal(map[string]any{
		"alerting":   alerting,
		"global":     map[string]any{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
		"rule_files": []string{rulesFile}, "scrape_configs": jobs,
	})
	if err != nil {
		return nil, fmt.Errorf("encode Prometheus' configuration: %w", err)
	}
	return body, nil
}

// Targets are what the monitor selects, with the labels that the Prometheus operator would have them given.
func (m Monitor) Targets(access Access, services []corev1.Service, pods []corev1.Pod) []Group {
	found := []Group{}
	if !m.services {
		for i := range pods {
			if m.selects(&pods[i].ObjectMeta) {
				found = append(found, scraped(access, &pods[i], intstr.FromString(m.port), map[string]string{
					"job": m.namespace + "/" + m.name, "endpoint": m.port,
				})...)
			}
		}
		return found
	}
	for i := range services {
		service := &services[i]
		if !m.selects(&service.ObjectMeta) || len(service.Spec.Selector) == 0 {
			continue
		}
		for _, port := range service.Spec.Ports {
			if port.Name != m.port {
				continue
			}
			for j := range pods {
				if pods[j].Namespace == service.Namespace && labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pods[j].Labels)) {
					found = append(found, scraped(access, &pods[j], port.TargetPort, map[string]string{
						"job": service.Name, "service": service.Name, "endpoint": m.port,
					})...)
				}
			}
		}
	}
	return found
}

func (m Monitor) selects(object *metav1.ObjectMeta) bool {
	return (m.everywhere || object.Namespace == m.namespace) && m.selector.Matches(labels.Set(object.Labels))
}

// scraped is a pod's port, by its name or number, with more labels; none if the pod is over or has no such port.
func scraped(access Access, pod *corev1.Pod, by intstr.IntOrString, more map[string]string) []Group {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded || pod.Status.PodIP == "" {
		return nil
	}
	var found []Group
	for _, container := range lasting(pod.Spec) {
		for _, port := range container.Ports {
			if by.Type == intstr.Int && port.ContainerPort != by.IntVal || by.Type == intstr.String && port.Name != by.StrVal {
				continue
			}
			number := strconv.Itoa(int(port.ContainerPort))
			given := map[string]string{
				"__metrics_path__": "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name + ":" + number + "/proxy/metrics",
				"namespace":        pod.Namespace, "pod": pod.Name, "container": container.Name, "instance": pod.Status.PodIP + ":" + number,
			}
			maps.Copy(given, more)
			found = append(found, Group{Targets: []string{access.Host}, Labels: given})
		}
	}
	return found
}

// lasting are a pod's containers that run while it does: init containers that stay are some of them.
func lasting(pod corev1.PodSpec) []corev1.Container {
	containers := pod.Containers
	for _, c := range pod.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers[:len(containers):len(containers)], c)
		}
	}
	return containers
}
