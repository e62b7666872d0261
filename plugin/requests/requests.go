// Package requests computes the resource requests of a cluster's PostgreSQL containers, which it saves while it sleeps, and of
// its sidecars while it is awake.
package requests

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// Sum is the sum of the requests of all PostgreSQL containers, in cores and bytes; zero if none.
type Sum struct{ CPU, Memory float64 }

// Of returns the requests according to the Cluster, from which its pods are made.
func Of(cluster *cnpgv1.Cluster) Sum {
	instances := float64(cluster.Spec.Instances)
	of := func(name corev1.ResourceName) float64 {
		quantity, given := cluster.Spec.Resources.Requests[name]
		if !given { // then Kubernetes uses the limit
			quantity = cluster.Spec.Resources.Limits[name]
		}
		return quantity.AsApproximateFloat64() * instances
	}
	return Sum{CPU: of(corev1.ResourceCPU), Memory: of(corev1.ResourceMemory)}
}

// Guaranteed reports whether a container's resources allow a pod of QoS class Guaranteed: CPU and memory have limits, and equal
// requests. A missing request defaults to the limit.
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

// Sidecars are the requests and limits of a sidecar, by the QoS class of the pod without it.
type Sidecars struct {
	// Guaranteed applies to Guaranteed pods, which keep their class only if requests equal limits; Burstable applies to all
	// others.
	Burstable, Guaranteed corev1.ResourceRequirements
}

// KeepGuaranteed reports whether a Guaranteed pod keeps its class with the sidecar.
func (s Sidecars) KeepGuaranteed() bool { return Guaranteed(s.Guaranteed) }

// In returns the resources of a sidecar by whether the pod is Guaranteed.
func (s Sidecars) In(guaranteed bool) corev1.ResourceRequirements {
	if guaranteed {
		return s.Guaranteed
	}
	return s.Burstable
}

// Of returns the requests of all instances' sidecars by the Cluster and the current settings. Pods created before a change of
// either keep their old requests.
func (s Sidecars) Of(cluster *cnpgv1.Cluster) Sum {
	requests, instances := s.In(Guaranteed(cluster.Spec.Resources)).Requests, float64(cluster.Spec.Instances)
	return Sum{CPU: requests.Cpu().AsApproximateFloat64() * instances, Memory: requests.Memory().AsApproximateFloat64() * instances}
}
