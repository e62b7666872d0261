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
