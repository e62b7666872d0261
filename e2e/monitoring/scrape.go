package monitoring

import (
	"fmt"
	"strconv"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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

// TargetsFile is the name of the file that the monitor's targets are read from.
func TargetsFile(monitor monitoringv1.PodMonitor) string {
	return "targets-" + monitor.Namespace + "-" + monitor.Name + ".json"
}

// Configuration is a Prometheus configuration with the rules of a file and a job for each PodMonitor, which have one endpoint
// each. The interval is Prometheus' own notation.
func Configuration(monitors []monitoringv1.PodMonitor, access Access, rulesFile, interval string) ([]byte, error) {
	jobs := make([]map[string]any, 0, len(monitors))
	for _, monitor := range monitors {
		endpoint, err := endpointOf(monitor)
		if err != nil {
			return nil, err
		}
		job := map[string]any{
			"job_name": "podMonitor/" + monitor.Namespace + "/" + monitor.Name + "/0", "honor_labels": endpoint.HonorLabels,
			"scheme": "https", "tls_config": access.Certificates,
			"file_sd_configs": []any{map[string]any{"files": []string{TargetsFile(monitor)}}},
		}
		if access.TokenFile != "" {
			job["authorization"] = map[string]any{"credentials_file": access.TokenFile}
		}
		jobs = append(jobs, job)
	}
	body, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
		"rule_files": []string{rulesFile}, "scrape_configs": jobs,
	})
	if err != nil {
		return nil, fmt.Errorf("encode Prometheus' configuration: %w", err)
	}
	return body, nil
}

// Targets are the pods that the monitor selects, with the labels that the Prometheus operator would have them given.
func Targets(monitor monitoringv1.PodMonitor, access Access, pods []corev1.Pod) ([]Group, error) {
	endpoint, err := endpointOf(monitor)
	if err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("read the selector of the PodMonitor %s: %w", monitor.Name, err)
	}
	found := []Group{}
	for _, pod := range pods {
		elsewhere := !monitor.Spec.NamespaceSelector.Any && pod.Namespace != monitor.Namespace
		over := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		if elsewhere || over || pod.Status.PodIP == "" || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				if port.Name == *endpoint.Port {
					found = append(found, group(monitor, access, pod, container.Name, port))
				}
			}
		}
	}
	return found, nil
}

func group(monitor monitoringv1.PodMonitor, access Access, pod corev1.Pod, container string, port corev1.ContainerPort) Group {
	number := strconv.Itoa(int(port.ContainerPort))
	return Group{Targets: []string{access.Host}, Labels: map[string]string{
		"__metrics_path__": "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name + ":" + number + "/proxy/metrics",
		"namespace":        pod.Namespace, "pod": pod.Name, "container": container, "instance": pod.Status.PodIP + ":" + number,
		"job": monitor.Namespace + "/" + monitor.Name, "endpoint": port.Name,
	}}
}

// endpointOf is the monitor's endpoint, which is named by its port.
func endpointOf(monitor monitoringv1.PodMonitor) (monitoringv1.PodMetricsEndpoint, error) {
	if endpoints := monitor.Spec.PodMetricsEndpoints; len(endpoints) == 1 && endpoints[0].Port != nil {
		return endpoints[0], nil
	}
	return monitoringv1.PodMetricsEndpoint{}, fmt.Errorf("the PodMonitor %s has not one endpoint with a port's name", monitor.Name)
}
