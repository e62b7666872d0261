package cnpgi

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// bootstrapContainer is the operator's init container that copies its program into the pod (1.30: pkg/specs/pods.go).
const bootstrapContainer = "bootstrap-controller"

// prepareSidecar adds the readiness probe by which the sidecar takes the pod out of its Services before PostgreSQL
// stops for a doze, and the variable with PostgreSQL's memory request meanwhile; empty: none. One failure of the probe
// suffices, because clients wait. The port is open by default, so the probe fails for no other reason.
func prepareSidecar(pod *corev1.Pod, memory string) {
	sidecar := named(pod, containerName)
	if sidecar == nil {
		return
	}
	sidecar.Env = append(sidecar.Env,
		corev1.EnvVar{Name: contract.EnvReadinessPort, Value: strconv.Itoa(contract.ReadinessPort)})
	sidecar.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(contract.ReadinessPort)}},
		PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1, SuccessThreshold: 1,
	}
	if memory != "" {
		sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: contract.EnvDozeMemoryRequest, Value: memory})
	}
}

// shrinkBootstrapRequests lowers the requests of the operator's init container as far as the limits allow, unless the
// pod is Guaranteed.
//
// A pod's effective request is the larger of that of its init containers and the sum of its other containers, even
// after the init containers have ended (Kubernetes' documentation of init containers: "Resource sharing within
// containers"). The operator gives this init container PostgreSQL's requests (1.30: pkg/specs/containers.go). With
// them, resizing a dozing pod's containers would have no effect on its node. The container only copies a file, and its
// limits stay. The operator ignores it when it compares pods (1.30: pkg/specs/podspec_diff.go), so this causes no
// rollout.
//
// A Burstable pod stays Burstable, because the sidecar has requests. A Guaranteed pod would become Burstable, so it is
// left as it is.
func shrinkBootstrapRequests(pod *corev1.Pod, of limits) {
	if guaranteed(of.defaulted(pod)) {
		return
	}
	for i := range pod.Spec.InitContainers {
		if container := &pod.Spec.InitContainers[i]; container.Name == bootstrapContainer {
			shrink(&container.Resources, corev1.ResourceCPU, resource.MustParse("10m"))
			shrink(&container.Resources, corev1.ResourceMemory, resource.MustParse("64Mi"))
			container.Resources.Requests = of.fit(container.Resources).Requests
		}
	}
}

// shrink lowers a request. If only a limit is set, Kubernetes uses that as the request.
func shrink(resources *corev1.ResourceRequirements, name corev1.ResourceName, to resource.Quantity) {
	request, ok := resources.Requests[name]
	if !ok {
		request, ok = resources.Limits[name]
	}
	if !ok || request.Cmp(to) <= 0 {
		return
	}
	if resources.Requests == nil {
		resources.Requests = corev1.ResourceList{}
	}
	resources.Requests[name] = to
}
