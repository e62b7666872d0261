package endpointslice

import (
	"cmp"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// PoolerOf is the Pooler that the Service's selector names; empty: none.
func PoolerOf(service *corev1.Service) string { return service.Spec.Selector[labelPooler] }

// BehindPooler is the name of the Service to which the Pooler's PgBouncer connects.
func BehindPooler(pooler *cnpgv1.Pooler) string {
	return pooler.Spec.Cluster.Name + "-" + cmp.Or(string(pooler.Spec.Type), string(cnpgv1.PoolerTypeRW))
}

// IsPooler reports whether the pod runs PgBouncer for a Pooler, by the labels that the operator has given it.
func IsPooler(pod *corev1.Pod) bool {
	return pod.Labels[LabelPodRole] == rolePooler && pod.Labels[labelPooler] != ""
}

// ServesPooler reports whether clients reach the Pooler's PgBouncer through the Service. Those of a headless one do so
// by the pods' addresses, which no other endpoint has.
func ServesPooler(service *corev1.Service, pooler *cnpgv1.Pooler) bool {
	spec := &service.Spec
	if len(spec.Selector) == 0 || spec.ClusterIP == "" || spec.ClusterIP == headless || len(portNames(service)) == 0 {
		return false
	}
	set := labels.Set{}
	if template := pooler.Spec.Template; template != nil {
		set = labels.Merge(set, template.ObjectMeta.Labels)
	}
	cluster := pooler.Spec.Cluster.Name
	set = labels.Merge(set, labels.Set{
		LabelCluster: cluster, labelPooler: pooler.Name, LabelPodRole: rolePooler,
		"app.kubernetes.io/name": "postgresql", "app.kubernetes.io/instance": cluster,
		"app.kubernetes.io/component": rolePooler, "app.kubernetes.io/managed-by": "cloudnative-pg",
	})
	return labels.SelectorFromSet(spec.Selector).Matches(set)
}

// RoutesPooler reports whether the clients of a Service that serves a Pooler can be routed to the gateway. The selector
// must name the Pooler: otherwise a connection does not say which of them to wake.
func RoutesPooler(service *corev1.Service) bool {
	return PoolerOf(service) != "" && service.DeletionTimestamp.IsZero() && obstacleOf(service) == ""
}
