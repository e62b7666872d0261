package plan

import (
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
)

// taintNodeShutdown is on a node whose machine is off (k8s.io/cloud-provider/api).
const taintNodeShutdown = "node.cloudprovider.kubernetes.io/shutdown"

// Disruption says why the pod of a dozing cluster, with these tolerations, is to leave its node; empty: it may stay.
// That the node has failed is no reason, because the pod could not be deleted there.
func Disruption(node *corev1.Node, tolerations []corev1.Toleration) string {
	if node.Spec.Unschedulable {
		return "is cordoned"
	}
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		switch {
		case taint.Key == corev1.TaintNodeMemoryPressure: // even if the pod tolerates it
			return "is short of memory"
		case taint.Key == corev1.TaintNodeNotReady, taint.Key == corev1.TaintNodeUnreachable,
			taint.Key == taintNodeShutdown, taint.Effect == corev1.TaintEffectPreferNoSchedule:
		case !tolerates(tolerations, taint):
			return "has the taint " + taint.Key + ":" + string(taint.Effect)
		}
	}
	return ""
}

func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	for i := range tolerations {
		if tolerations[i].ToleratesTaint(logr.Discard(), taint, true) {
			return true
		}
	}
	return false
}
