package endpointslice

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	// ManagedBy tells our EndpointSlices from those of other controllers.
	ManagedBy = "scale-to-zero.cnpg-i.io"
	// LabelReplica is the UID of the pod that the slice leads to, LabelPod its name for people who look.
	LabelReplica = "scale-to-zero.cnpg-i.io/replica"
	LabelPod     = "scale-to-zero.cnpg-i.io/pod"

	// maximumName bounds what labels hold, and is applied to the slices' names too.
	maximumName = 63
)

// Replica is a pod of the gateway.
type Replica struct {
	Namespace, Pod string
	UID            types.UID
	Node           string
	// Addresses are the pod's, one of each family that it has.
	Addresses []netip.Addr
}

// Wanted are the slices that lead the clients of a cluster's Service to a port of the replica: one of each family of
// addresses that both have. The name depends on the Service, the replica and the family alone.
func Wanted(service *corev1.Service, cluster string, replica Replica, port uint16) []discoveryv1.EndpointSlice {
	var wanted []discoveryv1.EndpointSlice
	for _, family := range service.Spec.IPFamilies {
		at := slices.IndexFunc(replica.Addresses,
			func(a netip.Addr) bool { return FamilyOf(a) == discoveryv1.AddressType(family) })
		if at < 0 {
			continue
		}
		endpoint := discoveryv1.Endpoint{
			Addresses:  []string{replica.Addresses[at].String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		}
		if replica.Node != "" { // traffic policies ask on which node it is
			endpoint.NodeName = ptr.To(replica.Node)
		}
		wanted = append(wanted, discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: service.Namespace, Name: nameOf(service, replica, family),
				Labels: map[string]string{
					discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: ManagedBy,
					LabelCluster: cluster, LabelReplica: string(replica.UID),
					LabelPod: replica.Pod[:min(len(replica.Pod), maximumName)],
				},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}},
			},
			AddressType: discoveryv1.AddressType(family),
			Endpoints:   []discoveryv1.Endpoint{endpoint},
			Ports:       endpointPorts(service, port),
		})
	}
	return wanted
}

// FamilyOf is the family of an address that is not an IPv4 one in the form of IPv6.
func FamilyOf(address netip.Addr) discoveryv1.AddressType {
	if address.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func endpointPorts(service *corev1.Service, number uint16) []discoveryv1.EndpointPort {
	var ports []discoveryv1.EndpointPort
	for _, name := range portNames(service) {
		ports = append(ports, discoveryv1.EndpointPort{Name: ptr.To(name), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(number))})
	}
	return ports
}

// nameOf begins with the Service's name, as those of Kubernetes' own slices do.
func nameOf(service *corev1.Service, replica Replica, family corev1.IPFamily) string {
	hash := fnv.New64a()
	_, _ = fmt.Fprintf(hash, "%s %s %s", service.UID, replica.UID, family)
	suffix := "-wake-" + strconv.FormatUint(hash.Sum64(), 36)
	return service.Name[:min(len(service.Name), maximumName-len(suffix))] + suffix
}

// IsOurs reports whether a gateway created the slice, that of this replica or another. One of the labels suffices: a
// slice that has lost the other still has no instance as its endpoint, and the informers must keep what its update
// needs.
func IsOurs(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[discoveryv1.LabelManagedBy] == ManagedBy || slice.Labels[LabelReplica] != ""
}

// ReplicaOf is the UID of the pod that a slice of ours leads to.
func ReplicaOf(slice *discoveryv1.EndpointSlice) types.UID {
	return types.UID(slice.Labels[LabelReplica])
}

// ServiceOf is the UID of the Service that a slice of ours belongs to.
func ServiceOf(slice *discoveryv1.EndpointSlice) types.UID {
	for _, owner := range slice.OwnerReferences {
		if owner.Kind == "Service" {
			return owner.UID
		}
	}
	return ""
}

// PortOf is the port of the gateway that a slice of ours names, 0 if it names none.
func PortOf(slice *discoveryv1.EndpointSlice) uint16 {
	for _, port := range slice.Ports {
		if port.Port != nil {
			return uint16(*port.Port)
		}
	}
	return 0
}

// Same reports whether a slice that is there is the wanted one, so that nothing has to be written. Labels and
// annotations that others have added do not matter.
func Same(have, want *discoveryv1.EndpointSlice) bool {
	for key, value := range want.Labels {
		if have.Labels[key] != value {
			return false
		}
	}
	return have.AddressType == want.AddressType &&
		equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences)
}

// Update changes a slice that is there into the wanted one. Its family cannot change: the name depends on it.
func Update(have, want *discoveryv1.EndpointSlice) {
	if have.Labels == nil {
		have.Labels = map[string]string{}
	}
	maps.Copy(have.Labels, want.Labels)
	have.OwnerReferences, have.Endpoints, have.Ports = want.OwnerReferences, want.Endpoints, want.Ports
}
