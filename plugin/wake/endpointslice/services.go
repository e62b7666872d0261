// Package endpointslice decides which Services of a sleeping cluster are routed to the gateway, and by which
// EndpointSlices. It does no I/O.
package endpointslice

import (
	"net/netip"
	"slices"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Labels of the operator (1.30: pkg/utils/labels_annotations.go).
const (
	// LabelCluster names the cluster on its Services and pods, and so on the Services' EndpointSlices.
	LabelCluster = "cnpg.io/cluster"
	// LabelPodRole tells instances from poolers.
	LabelPodRole = "cnpg.io/podRole"
	// NamePostgres is what the instances' container calls PostgreSQL's port.
	NamePostgres = "postgresql"
	// NamePgBouncer is what the container of a Pooler's pods calls PgBouncer's port, which has PostgreSQL's number.
	NamePgBouncer = "pgbouncer"
	// LabelInstanceRole is the role of an instance. The operator sets it some seconds after a pod has started.
	LabelInstanceRole = "cnpg.io/instanceRole"

	labelPooler       = "cnpg.io/poolerName" // the Pooler, on the pods of its PgBouncer and so in its Service's selector
	labelInstanceName = "cnpg.io/instanceName"
	labelOldRole      = "role" // the deprecated form of LabelInstanceRole
	labelVersion      = "app.kubernetes.io/version"
	roleInstance      = "instance"
	rolePrimary       = "primary"
	roleReplica       = "replica"
	rolePooler        = "pooler"
	headless          = "None"
	kindOfCluster     = "Cluster"
)

// IsInstance reports whether the pod is an instance of the cluster that its label names, which the operator made for
// it. One that only has the labels, such as a copy for debugging, is none: the operator goes by the controller too.
func IsInstance(pod *corev1.Pod) bool {
	controller := metav1.GetControllerOfNoCopy(pod)
	return controller != nil && controller.Kind == kindOfCluster && controller.Name == pod.Labels[LabelCluster] &&
		pod.Labels[LabelPodRole] == roleInstance
}

// HasEnded reports whether every container of the pod has ended for good, as after an eviction. Its object keeps an
// address that another pod may have by now.
func HasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// Selects reports whether the Service selects the pod, or will once the operator has labelled it. A missing role
// follows from the current primary; during a switchover the answer is false.
func Selects(service *corev1.Service, pod *corev1.Pod, cluster *cnpgv1.Cluster) bool {
	if len(service.Spec.Selector) == 0 || !IsInstance(pod) {
		return false
	}
	set := labels.Set(pod.Labels)
	if set[LabelInstanceRole] == "" {
		status := &cluster.Status
		if status.CurrentPrimary == "" || status.TargetPrimary != "" && status.TargetPrimary != status.CurrentPrimary {
			return false
		}
		role := roleReplica
		if pod.Name == status.CurrentPrimary {
			role = rolePrimary
		}
		set = labels.Merge(set, labels.Set{LabelInstanceRole: role, labelOldRole: role})
	}
	return labels.SelectorFromSet(service.Spec.Selector).Matches(set)
}

// MayRoute reports whether the Service may select instances of a cluster, as far as it alone says.
func MayRoute(service *corev1.Service) bool {
	return len(service.Spec.Selector) != 0 &&
		(len(portNames(service)) != 0 || service.Spec.Type == corev1.ServiceTypeExternalName)
}

// portNames are the names of the Service's ports that lead to PostgreSQL, or to PgBouncer.
func portNames(service *corev1.Service) []string {
	var names []string
	for _, port := range service.Spec.Ports {
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			continue
		}
		target := port.TargetPort
		postgres := target.Type == intstr.Int && target.IntVal == contract.PostgresPort ||
			target.Type == intstr.String && target.StrVal == NamePostgres ||
			target.Type == intstr.String && target.StrVal == NamePgBouncer && PoolerOf(service) != "" ||
			target == intstr.IntOrString{} && port.Port == contract.PostgresPort // unset means the same number
		if postgres {
			names = append(names, port.Name)
		}
	}
	return names
}

// Addresses are where clients reach the Service's PostgreSQL within the Kubernetes cluster.
func Addresses(service *corev1.Service) []netip.AddrPort {
	names := portNames(service)
	var addresses []netip.AddrPort
	for _, ip := range service.Spec.ClusterIPs {
		address, err := netip.ParseAddr(ip)
		if err != nil {
			continue
		}
		for _, port := range service.Spec.Ports {
			if slices.Contains(names, port.Name) {
				addresses = append(addresses, netip.AddrPortFrom(address, uint16(port.Port)))
			}
		}
	}
	return addresses
}

// Ready are the addresses of a Service's own ready endpoints among the EndpointSlices, that is of those that are not
// ours.
func Ready(service *corev1.Service, all []discoveryv1.EndpointSlice) []netip.Addr {
	var ready []netip.Addr
	for i := range all {
		slice := &all[i]
		if IsOurs(slice) || slice.Labels[discoveryv1.LabelServiceName] != service.Name {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil {
					ready = append(ready, address)
				}
			}
		}
	}
	return ready
}

// Serves reports whether the Service has a ready endpoint of its own of the family.
func Serves(service *corev1.Service, family discoveryv1.AddressType, all []discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(Ready(service, all), func(a netip.Addr) bool { return FamilyOf(a) == family })
}

// ServesAll reports whether the Service has ready endpoints of its own, and of every family in which a slice of ours
// leads its clients: Kubernetes writes those of one family after those of the other.
func ServesAll(service *corev1.Service, all []discoveryv1.EndpointSlice) bool {
	for i := range all {
		ours := IsOurs(&all[i]) && ServiceOf(&all[i]) == service.UID
		if ours && !Serves(service, all[i].AddressType, all) {
			return false
		}
	}
	return len(Ready(service, all)) != 0
}
