package waker

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policyTarget is a port of a pod.
type policyTarget struct {
	Namespace string
	Labels    map[string]string
	// Port is the number, of protocol TCP, and PortName how the pod's container calls it.
	Port     int32
	PortName string
}

// clientPod is who connects, if it is a pod with an address of its own.
type clientPod struct {
	Namespace               string
	Labels, NamespaceLabels map[string]string
}

// allows reports whether the policies admit the client at the address to the target. Only selectors admit a pod,
// because some networks do not match pods by ipBlock. If no pod is known to have the address, pod is nil, and only an
// ipBlock admits it. Other kinds, such as AdminNetworkPolicy or a network's own, are ignored, and the network is
// assumed to enforce policies.
func allows(policies []networkingv1.NetworkPolicy, target policyTarget, address netip.Addr, pod *clientPod) bool {
	isolated := false
	for i := range policies {
		policy := &policies[i]
		if !isolates(policy, target) {
			continue
		}
		isolated = true
		for _, rule := range policy.Spec.Ingress {
			if ofPort(rule.Ports, target) && from(rule.From, policy.Namespace, address.Unmap(), pod) {
				return true
			}
		}
	}
	return !isolated
}

// isolates reports whether the policy holds for what comes to the target. A policy that names no types is one of
// ingress.
func isolates(policy *networkingv1.NetworkPolicy, target policyTarget) bool {
	types := policy.Spec.PolicyTypes
	return policy.Namespace == target.Namespace &&
		(len(types) == 0 || slices.Contains(types, networkingv1.PolicyTypeIngress)) &&
		matches(&policy.Spec.PodSelector, target.Labels)
}

// ofPort reports whether a rule holds for the target's port. No ports are all.
func ofPort(ports []networkingv1.NetworkPolicyPort, target policyTarget) bool {
	if len(ports) == 0 {
		return true
	}
	return slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		switch {
		case p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP:
			return false
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			return p.Port.StrVal == target.PortName
		case p.EndPort != nil:
			return p.Port.IntVal <= target.Port && target.Port <= *p.EndPort
		default:
			return p.Port.IntVal == target.Port
		}
	})
}

// from reports whether one of the peers matches the client. An empty list matches every client.
func from(peers []networkingv1.NetworkPolicyPeer, namespace string, address netip.Addr, pod *clientPod) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		switch {
		case p.IPBlock != nil:
			return pod == nil && inBlock(p.IPBlock, address)
		case pod == nil || p.NamespaceSelector == nil && p.PodSelector == nil:
			return false
		case p.NamespaceSelector == nil && pod.Namespace != namespace:
			return false
		}
		return (p.NamespaceSelector == nil || matches(p.NamespaceSelector, pod.NamespaceLabels)) &&
			(p.PodSelector == nil || matches(p.PodSelector, pod.Labels))
	})
}

// inBlock reports whether a block of addresses has the address. An invalid block has none.
func inBlock(block *networkingv1.IPBlock, address netip.Addr) bool {
	cidr, err := netip.ParsePrefix(block.CIDR)
	if err != nil || !cidr.Contains(address) {
		return false
	}
	return !slices.ContainsFunc(block.Except, func(text string) bool {
		except, err := netip.ParsePrefix(text)
		return err != nil || except.Contains(address)
	})
}

// matches reports whether the selector matches the labels. An invalid one matches nothing.
func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}
