package lifecycle

import (
	"cmp"
	"math"

	corev1 "k8s.io/api/core/v1"
)

// Kubernetes' own values where a probe names none.
const (
	defaultPeriod  = 10 // seconds
	defaultFailure = 3
)

// SetStartupProbePeriod has the kubelet probe every second whether PostgreSQL has started. The operator's own probe runs every ten
// seconds, which was 8 of the 11.4 s that a wake took.
func SetStartupProbePeriod(pod *corev1.Pod) {
	for i := range pod.Spec.Containers {
		if container := &pod.Spec.Containers[i]; container.Name == postgresContainer {
			probeEverySecond(container.StartupProbe)
		}
	}
}

// SetSidecarStartupProbePeriods has the kubelet probe every second whether the init containers that stay have started, which are other
// plugins' sidecars: it starts PostgreSQL only after them. Backup plugins leave the period at Kubernetes' default of ten seconds,
// and the first probe usually comes too early, so that a wake beside one took 12.3 s.
//
// The operator asks plugins in the order of their names, not in that of spec.plugins, and CREATE is asked with the pod that EVALUATE
// planned. So the sidecar of a plugin that is asked later is here too, if that plugin plans it, and keeps the period if its CREATE
// leaves a sidecar that is there as it is.
func SetSidecarStartupProbePeriods(pod *corev1.Pod) {
	for i := range pod.Spec.InitContainers {
		if container := &pod.Spec.InitContainers[i]; stays(container) {
			probeEverySecond(container.StartupProbe)
		}
	}
}

// SlowStartupProbes are the init containers that stay and that PostgreSQL's container may wait for, since their startup probe runs more
// seldom than every second or begins later; with their name and that probe's times, and nothing else.
func SlowStartupProbes(pod *corev1.Pod) []corev1.Container {
	var slow []corev1.Container
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		probe := container.StartupProbe
		if !stays(container) || probe == nil || probe.InitialDelaySeconds == 0 && cmp.Or(probe.PeriodSeconds, defaultPeriod) == 1 {
			continue
		}
		slow = append(slow, corev1.Container{Name: container.Name, RestartPolicy: container.RestartPolicy, StartupProbe: &corev1.Probe{
			InitialDelaySeconds: probe.InitialDelaySeconds, PeriodSeconds: cmp.Or(probe.PeriodSeconds, defaultPeriod),
		}})
	}
	return slow
}

// stays reports whether an init container runs as long as the pod.
func stays(container *corev1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// probeEverySecond makes a startup probe one of every second that fails after the same time in all; a delay before the first is part of
// that time. The timeout of a single probe stays: a probe may take longer than its period, and the next one then waits.
func probeEverySecond(probe *corev1.Probe) {
	if probe == nil {
		return
	}
	allowed := int64(probe.InitialDelaySeconds) +
		int64(cmp.Or(probe.PeriodSeconds, defaultPeriod))*int64(cmp.Or(probe.FailureThreshold, defaultFailure))
	probe.InitialDelaySeconds, probe.PeriodSeconds, probe.FailureThreshold = 0, 1, int32(min(allowed, math.MaxInt32))
}
