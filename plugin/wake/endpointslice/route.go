package endpointslice

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Verdict says what becomes of a Service's clients while its cluster sleeps.
type Verdict int

// The verdicts.
const (
	// Unrelated is a Service that does not select the cluster's instances, or that has no port for PostgreSQL.
	Unrelated Verdict = iota
	// Routable is one whose clients can be routed to the gateway.
	Routable
	// Unroutable is one whose clients cannot.
	Unroutable
	// Accepted is one whose clients cannot, and whose owner accepts that.
	Accepted
)

// Annotations and classes of load balancers that send traffic only to pods, and so ignore our endpoints. Others may do
// so without a sign in the Service.
const (
	annotationNEG        = "cloud.google.com/neg"
	annotationTargetType = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"
	annotationLoadType   = "service.beta.kubernetes.io/aws-load-balancer-type"
	classAutoMode        = "eks.amazonaws.com/nlb"
)

// ReadsAnnotation reports whether [Route] reads that annotation of a Service.
func ReadsAnnotation(name string) bool {
	switch name {
	case annotationNEG, annotationTargetType, annotationLoadType, contract.AnnotationUnroutable:
		return true
	default:
		return false
	}
}

// Route says what becomes of the Service's clients while the cluster sleeps, and why those of an unroutable one are not
// routed to the gateway. pods are the cluster's, all the Clusters of its namespace. A headless Service is unrelated:
// its clients use the port of the instances, which no other endpoint has.
func Route(
	service *corev1.Service, cluster *cnpgv1.Cluster, pods []corev1.Pod, all []cnpgv1.Cluster,
) (Verdict, string) {
	spec := &service.Spec
	external := spec.Type == corev1.ServiceTypeExternalName
	switch {
	case !service.DeletionTimestamp.IsZero() || len(spec.Selector) == 0 || PoolerOf(service) != "":
		return Unrelated, ""
	case !external && (spec.ClusterIP == "" || spec.ClusterIP == headless || len(portNames(service)) == 0):
		return Unrelated, ""
	case spec.PublishNotReadyAddresses && ownedBy(service, cluster): // the Service -any, which is not for clients
		return Unrelated, ""
	}
	willSelect := selectsInstances(service, cluster)
	if !willSelect && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return Selects(service, &p, cluster) }) {
		return Unrelated, ""
	}
	obstacle := obstacleOf(service)
	switch {
	case obstacle != "":
	case !willSelect:
		obstacle = "it selects instances by labels that only their pods have, such as those of the operator's setting INHERITED_LABELS, so that " +
			"the plugin cannot tell which pods it selects while they are gone; set these labels in spec.inheritedMetadata.labels of the Cluster"
	default:
		obstacle = ambiguity(service, cluster, all)
	}
	if obstacle == "" {
		return Routable, ""
	}
	switch accepted := service.Annotations[contract.AnnotationUnroutable]; accepted {
	case contract.UnroutableAccept:
		return Accepted, obstacle
	case "", contract.UnroutableReject:
		return Unroutable, obstacle
	default:
		return Unroutable, fmt.Sprintf("%s; its annotation %s has the value %q: it must be %q or %q",
			obstacle, contract.AnnotationUnroutable, accepted, contract.UnroutableAccept, contract.UnroutableReject)
	}
}

// obstacleOf returns why endpoints other than the cluster's pods cannot serve all clients of the Service; empty: they
// can.
func obstacleOf(service *corev1.Service) string {
	spec := &service.Spec
	switch {
	case spec.Type == corev1.ServiceTypeExternalName:
		return "it is an ExternalName"
	case spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal:
		return "its internalTrafficPolicy is Local, and the gateway does not run on every node"
	case spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		return "its externalTrafficPolicy is Local, and the gateway does not run on every node"
	case strings.Contains(service.Annotations[annotationNEG], "exposed_ports"):
		return "its network endpoint group contains only pods (annotation " + annotationNEG + ")"
	case spec.Type == corev1.ServiceTypeLoadBalancer && targetsPods(service):
		return "its load balancer sends traffic only to pods (target type ip)"
	default:
		return ""
	}
}

// targetsPods reports whether a load balancer of AWS has the pods' addresses as its targets instead of the nodes'.
func targetsPods(service *corev1.Service) bool {
	kind := service.Annotations[annotationTargetType]
	class := service.Spec.LoadBalancerClass
	return kind == "ip" || service.Annotations[annotationLoadType] == "nlb-ip" ||
		class != nil && *class == classAutoMode && kind != "instance"
}

// ambiguity says that the Service selects instances of other clusters too: a connection does not say which of them it
// wakes.
func ambiguity(service *corev1.Service, cluster *cnpgv1.Cluster, all []cnpgv1.Cluster) string {
	for i := range all {
		if other := &all[i]; other.Name != cluster.Name && selectsInstances(service, other) {
			// The name of one of several would depend on their order, which is random.
			return "it selects instances of other Clusters too, so a connection does not say which of them to wake"
		}
	}
	return ""
}

func ownedBy(service *corev1.Service, cluster *cnpgv1.Cluster) bool {
	return slices.ContainsFunc(service.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == kindOfCluster && o.UID == cluster.UID
	})
}

// selectsInstances reports whether the Service selects instances that the cluster has while it is awake.
func selectsInstances(service *corev1.Service, cluster *cnpgv1.Cluster) bool {
	selector := maps.Clone(service.Spec.Selector)
	delete(selector, labelVersion) // PostgreSQL's version, which depends on the image
	return len(selector) != 0 &&
		(matches(selector, cluster, rolePrimary) || cluster.Spec.Instances > 1 && matches(selector, cluster, roleReplica))
}

// matches reports whether the selector matches an instance of that role.
func matches(selector map[string]string, cluster *cnpgv1.Cluster, role string) bool {
	set := labels.Set{}
	if inherited := cluster.Spec.InheritedMetadata; inherited != nil {
		set = labels.Merge(set, inherited.Labels)
	}
	set = labels.Merge(set, labels.Set{
		LabelCluster: cluster.Name, LabelPodRole: roleInstance, LabelInstanceRole: role, labelOldRole: role,
		"app.kubernetes.io/name": "postgresql", "app.kubernetes.io/instance": cluster.Name,
		"app.kubernetes.io/component": "database", "app.kubernetes.io/managed-by": "cloudnative-pg",
	})
	if name := selector[labelInstanceName]; mayBe(name, cluster, role) {
		set[labelInstanceName] = name
	}
	return labels.SelectorFromSet(selector).Matches(set)
}

// mayBe reports whether an instance of that name may have that role: the primary keeps its role across a sleep.
func mayBe(name string, cluster *cnpgv1.Cluster, role string) bool {
	serial, found := strings.CutPrefix(name, cluster.Name+"-")
	if _, err := strconv.ParseUint(serial, 10, 31); !found || err != nil {
		return false
	}
	primary := cluster.Status.CurrentPrimary
	return primary == "" || (name == primary) == (role == rolePrimary)
}
