package lifecycle

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/plugin/requests"
)

// guaranteed reports whether the pod's QoS class without the sidecar is Guaranteed.
func guaranteed(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name != containerName && !requests.Guaranteed(containers[i].Resources) {
				return false
			}
		}
	}
	return true
}
