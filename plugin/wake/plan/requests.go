package plan

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// Requests are those of all PostgreSQL containers of a cluster, which it saves while it sleeps, or of all its sidecars,
// which it has while it is awake: in cores and bytes, zero if none.
type Requests struct{ CPU, Memory float64 }

// RequestsOf returns the requests according to the Cluster, from which its pods are made.
func RequestsOf(cluster *cnpgv1.Cluster) Requests {
	instances := float64(cluster.Spec.Instances)
	of := func(name corev1.ResourceName) float64 {
		quantity, given := cluster.Spec.Resources.Requests[name]
		if !given { // then Kubernetes uses the limit
			quantity = cluster.Spec.Resources.Limits[name]
		}
		return quantity.AsApproximateFloat64() * instances
	}
	return Requests{CPU: of(corev1.ResourceCPU), Memory: of(corev1.ResourceMemory)}
}
