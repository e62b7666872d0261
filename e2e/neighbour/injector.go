package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cloudnative-pg/cnpg-i-machinery/pkg/pluginhelper/object"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// containerName is the name of the sidecar.
const containerName = "neighbour"

// injector is the lifecycle service.
type injector struct {
	lifecycle.UnimplementedOperatorLifecycleServer
	name, image string
	// replaces makes it replace a sidecar that the pod already has; unprobed omits the sidecar's startup probe.
	replaces, unprobed bool
}

// GetCapabilities asks for pods, when they are planned and when they are made.
func (i *injector) GetCapabilities(context.Context, *lifecycle.OperatorLifecycleCapabilitiesRequest) (*lifecycle.OperatorLifecycleCapabilitiesResponse, error) {
	return &lifecycle.OperatorLifecycleCapabilitiesResponse{LifecycleCapabilities: []*lifecycle.OperatorLifecycleCapabilities{{
		Kind: "Pod",
		OperationTypes: []*lifecycle.OperatorOperationType{
			{Type: lifecycle.OperatorOperationType_TYPE_CREATE}, {Type: lifecycle.OperatorOperationType_TYPE_EVALUATE},
		},
	}}}, nil
}

// LifecycleHook injects the sidecar, which gets PostgreSQL's environment and all of its mounts.
func (i *injector) LifecycleHook(_ context.Context, request *lifecycle.OperatorLifecycleRequest) (*lifecycle.OperatorLifecycleResponse, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(request.GetObjectDefinition(), &pod); err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	if pod.Labels["cnpg.io/podRole"] != "instance" {
		return &lifecycle.OperatorLifecycleResponse{}, nil
	}
	injected := pod.DeepCopy()
	if i.replaces {
		injected.Spec.InitContainers = slices.DeleteFunc(injected.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == containerName })
	}
	if err := object.InjectPluginSidecarInitContainer(injected, i.sidecar(&pod), true); err != nil {
		return nil, fmt.Errorf("inject the sidecar: %w", err)
	}
	patch, err := object.CreatePatch(injected, &pod)
	if err != nil {
		return nil, fmt.Errorf("make the patch: %w", err)
	}
	return &lifecycle.OperatorLifecycleResponse{JsonPatch: patch}, nil
}

func (i *injector) sidecar(pod *corev1.Pod) *corev1.Container {
	name := "-name=" + i.name
	sidecar := &corev1.Container{
		Name: containerName, Image: i.image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"instance", name},
		StartupProbe: &corev1.Probe{ // of every ten seconds, as the sidecars of backup plugins have it
			FailureThreshold: 10, TimeoutSeconds: 10,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/neighbour", "probe", name}}},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if i.unprobed {
		sidecar.StartupProbe = nil
	}
	for _, container := range pod.Spec.Containers {
		if container.Name == "postgres" {
			sidecar.Env = container.Env
		}
	}
	return sidecar
}
