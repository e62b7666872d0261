package lifecycle

import (
	corev1 "k8s.io/api/core/v1"
)

// markerFile is what the sidecar leaves in the socket's directory before it turns the hibernation switch on.
const markerFile = ".scale-to-zero-asleep"

// preStopScript keeps PostgreSQL serving for two seconds if the sidecar has left its file: as long as kube-proxy may take to
// learn that a Service leads elsewhere (its minimum interval is a second). At every other end of the pod it only looks for the file.
const preStopScript = `test ! -e "$PGHOST/` + markerFile + `" || exec sleep 2`

// AddPreStopHook adds a preStop hook to the PostgreSQL container, unless it has one. It needs a shell in the image; without one the
// kubelet says so in an Event and goes on.
func AddPreStopHook(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		if container.Name != postgresContainer || container.Lifecycle != nil && container.Lifecycle.PreStop != nil {
			continue
		}
		if container.Lifecycle == nil {
			container.Lifecycle = &corev1.Lifecycle{}
		}
		container.Lifecycle.PreStop = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", preStopScript}}}
	}
}
