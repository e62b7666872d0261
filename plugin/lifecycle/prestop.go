package lifecycle

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// markerFile is the file that the sidecar creates in the socket's directory before it turns hibernation on.
const markerFile = ".scale-to-zero-asleep"

// preStopScript delays PostgreSQL's shutdown by two seconds if the marker file exists: kube-proxy may need that long to reroute
// a Service (its minimum sync interval is a second). At any other deletion of the pod it only checks for the file.
const preStopScript = `test ! -e "$PGHOST/` + markerFile + `" || exec sleep 2`

// AddPreStopHook adds a preStop hook to the PostgreSQL container, unless it has one. The hook needs a shell in the image;
// without one the kubelet writes an Event and continues.
func AddPreStopHook(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		if container.Name != contract.PostgresContainer || container.Lifecycle != nil && container.Lifecycle.PreStop != nil {
			continue
		}
		if container.Lifecycle == nil {
			container.Lifecycle = &corev1.Lifecycle{}
		}
		container.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", preStopScript}}}
	}
}
