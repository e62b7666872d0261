package cnpgi

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// operation is an operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// add adds an item to a list, or adds or replaces a member of an object.
func add(value any, path string, arguments ...any) operation {
	return operation{Op: "add", Path: fmt.Sprintf(path, arguments...), Value: value}
}

// replace replaces an item of a list.
func replace(value any, list string, index int) operation {
	return operation{Op: "replace", Path: fmt.Sprintf("%s/%d", list, index), Value: value}
}

// changes returns the patch from one pod to the other. It covers only what this package changes: the sidecar, its
// volumes, the times of startup probes, the preStop hook and requests. Everything else in the pod stays as it is,
// including fields of a newer Kubernetes.
func changes(from, to *corev1.Pod) []operation {
	operations := containerChanges("/spec/containers", from.Spec.Containers, to.Spec.Containers)
	operations = append(operations,
		containerChanges("/spec/initContainers", from.Spec.InitContainers, to.Spec.InitContainers)...)
	if len(from.Spec.Volumes) == 0 {
		return append(operations, add(to.Spec.Volumes, "/spec/volumes"))
	}
	for i := range to.Spec.Volumes {
		switch volume := &to.Spec.Volumes[i]; {
		case i >= len(from.Spec.Volumes):
			operations = append(operations, add(volume, "/spec/volumes/-"))
		case volume.Name == volumeOwn || volume.Name == volumeToken:
			operations = append(operations, replace(volume, "/spec/volumes", i))
		}
	}
	return operations
}

func containerChanges(list string, from, to []corev1.Container) []operation {
	var operations []operation
	for i := range to {
		switch container := &to[i]; {
		case i >= len(from):
			operations = append(operations, add(container, "%s/-", list))
		case container.Name == containerName:
			operations = append(operations, replace(container, list, i))
		default:
			item := fmt.Sprintf("%s/%d", list, i)
			operations = append(operations, probeChanges(item+"/startupProbe", from[i].StartupProbe, container.StartupProbe)...)
			operations = append(operations, hookChanges(item+"/lifecycle", from[i].Lifecycle, container.Lifecycle)...)
			// A container whose requests are changed has resources.
			if requests := container.Resources.Requests; !equality.Semantic.DeepEqual(from[i].Resources.Requests, requests) {
				operations = append(operations, add(requests, "%s/resources/requests", item))
			}
		}
	}
	return operations
}

// probeChanges patches the times of an existing probe.
func probeChanges(path string, from, to *corev1.Probe) []operation {
	if from == nil {
		return nil
	}
	var operations []operation
	for _, field := range []struct {
		name     string
		had, has int32
	}{
		{"initialDelaySeconds", from.InitialDelaySeconds, to.InitialDelaySeconds},
		{"periodSeconds", from.PeriodSeconds, to.PeriodSeconds},
		{"failureThreshold", from.FailureThreshold, to.FailureThreshold},
	} {
		if field.has != field.had {
			operations = append(operations, add(field.has, "%s/%s", path, field.name))
		}
	}
	return operations
}

// hookChanges adds a preStop hook where there was none.
func hookChanges(path string, from, to *corev1.Lifecycle) []operation {
	switch {
	case to == nil || to.PreStop == nil || from != nil && from.PreStop != nil:
		return nil
	case from == nil:
		return []operation{add(to, "%s", path)}
	default:
		return []operation{add(to.PreStop, "%s/preStop", path)}
	}
}
