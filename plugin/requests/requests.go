// Package requests says what the PostgreSQL containers of a cluster request of Kubernetes, and so what it saves while it sleeps,
// and what its sidecars do while it is awake.
package requests

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// Sum is what the PostgreSQL containers of all instances request, in cores and bytes; zero: nothing.
type Sum struct{ CPU, Memory float64 }

// Of is what they are by the Cluster, which its pods follow.
func Of(cluster *cnpgv1.Cluster) Sum {
	instances := float64(cluster.Spec.Instances)
	of := func(name corev1.ResourceName) float64 {
		quantity, given := cluster.Spec.Resources.Requests[name]
		if !given { // then Kubernetes takes the limit
			quantity = cluster.Spec.Resources.Limits[name]
		}
		return quantity.AsApproximateFloat64() * instances
	}
	return Sum{CPU: of(corev1.ResourceCPU), Memory: of(corev1.ResourceMemory)}
}
