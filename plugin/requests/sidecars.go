package requests

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// Guaranteed reports whether a container's resources are those of a pod of the class Guaranteed: it limits CPU and memory, and
// requests as much. A request that is not given will be the limit.
func Guaranteed(resources corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit := resources.Limits[name]
		request, ok := resources.Requests[name]
		if limit.IsZero() || ok && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// Sidecars are the requests and limits of a sidecar, by the class of the pod without it.
type Sidecars struct {
	// Guaranteed are those in a pod of that class, which it stays in only if requests equal limits; Burstable in every other pod.
	Burstable, Guaranteed corev1.ResourceRequirements
}

// KeepGuaranteed reports whether a pod of the class Guaranteed stays in it with the sidecar.
func (s Sidecars) KeepGuaranteed() bool { return Guaranteed(s.Guaranteed) }

// In is those of a sidecar in a pod that is of the class Guaranteed, or is not.
func (s Sidecars) In(guaranteed bool) corev1.ResourceRequirements {
	if guaranteed {
		return s.Guaranteed
	}
	return s.Burstable
}

// Of is what the sidecars of all instances request, by the Cluster and the settings of now: pods that were made before a change of
// these request what they were.
func (s Sidecars) Of(cluster *cnpgv1.Cluster) Sum {
	requests, instances := s.In(Guaranteed(cluster.Spec.Resources)).Requests, float64(cluster.Spec.Instances)
	return Sum{CPU: requests.Cpu().AsApproximateFloat64() * instances, Memory: requests.Memory().AsApproximateFloat64() * instances}
}
