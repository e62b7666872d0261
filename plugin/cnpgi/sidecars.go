package cnpgi

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

// allowsGuaranteed reports whether a container's resources allow a pod of QoS class Guaranteed: CPU and memory have
// limits, and equal requests. A missing request defaults to the limit.
func allowsGuaranteed(resources corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit := resources.Limits[name]
		request, ok := resources.Requests[name]
		if limit.IsZero() || ok && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// Sidecars are the requests and limits of a sidecar, by the QoS class of the pod without it.
type Sidecars struct {
	// Guaranteed applies to Guaranteed pods, which keep their class only if requests equal limits; Burstable applies to
	// all others.
	Burstable, Guaranteed corev1.ResourceRequirements
}

// KeepGuaranteed reports whether a Guaranteed pod keeps its class with the sidecar.
func (s Sidecars) KeepGuaranteed() bool { return allowsGuaranteed(s.Guaranteed) }

// In returns the resources of a sidecar by whether the pod is Guaranteed.
func (s Sidecars) In(guaranteed bool) corev1.ResourceRequirements {
	if guaranteed {
		return s.Guaranteed
	}
	return s.Burstable
}

// Of returns the requests of all instances' sidecars by the Cluster and the current settings. Pods created before a
// change of either keep their old requests.
func (s Sidecars) Of(cluster *cnpgv1.Cluster) plan.Requests {
	requests, instances := s.In(allowsGuaranteed(cluster.Spec.Resources)).Requests, float64(cluster.Spec.Instances)
	return plan.Requests{
		CPU: requests.Cpu().AsApproximateFloat64() * instances, Memory: requests.Memory().AsApproximateFloat64() * instances,
	}
}
