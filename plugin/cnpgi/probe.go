package cnpgi

import (
	"cmp"
	"math"

	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Kubernetes' defaults for probes.
const (
	defaultPeriod  = 10 // seconds
	defaultFailure = 3
)

// setStartupProbePeriod sets the period of PostgreSQL's startup probe to one second. The operator's is ten seconds,
// which was 8 of the 11.4 s that a wake took.
func setStartupProbePeriod(pod *corev1.Pod) {
	if postgres := named(pod, contract.PostgresContainer); postgres != nil {
		probeEverySecond(postgres.StartupProbe)
	}
}

// setSidecarStartupProbePeriods sets the period of restartable init containers' startup probes to one second. These
// containers are other plugins' sidecars, and the kubelet starts PostgreSQL only after them. Backup plugins leave the
// period at Kubernetes' default of ten seconds, and the first probe usually comes too early, so that a wake beside one
// took 12.3 s.
//
// The operator calls plugins in the order of their names, not in that of spec.plugins, and calls CREATE with the pod
// planned by EVALUATE. So the sidecar of a plugin that is called later is already present, if that plugin plans it, and
// keeps the shorter period if that plugin's CREATE does not overwrite it.
func setSidecarStartupProbePeriods(pod *corev1.Pod) {
	for i := range pod.Spec.InitContainers {
		if container := &pod.Spec.InitContainers[i]; restartable(container) {
			probeEverySecond(container.StartupProbe)
		}
	}
}

// SlowStartupProbes returns the restartable init containers that may delay PostgreSQL's container, because their
// startup probe has a period above one second or an initial delay. Each has only its name and those times.
func SlowStartupProbes(pod *corev1.Pod) []corev1.Container {
	var slow []corev1.Container
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		probe := container.StartupProbe
		if !restartable(container) || probe == nil ||
			probe.InitialDelaySeconds == 0 && cmp.Or(probe.PeriodSeconds, defaultPeriod) == 1 {
			continue
		}
		slow = append(slow, corev1.Container{Name: container.Name, RestartPolicy: container.RestartPolicy, StartupProbe: &corev1.Probe{
			InitialDelaySeconds: probe.InitialDelaySeconds, PeriodSeconds: cmp.Or(probe.PeriodSeconds, defaultPeriod),
		}})
	}
	return slow
}

// restartable reports whether an init container is restartable, that is, runs as long as the pod.
func restartable(container *corev1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// probeEverySecond sets a startup probe's period to one second and keeps the total time until it fails, which includes
// the initial delay. The timeout of a single probe stays: a probe that takes longer than the period delays the next
// one.
func probeEverySecond(probe *corev1.Probe) {
	if probe == nil {
		return
	}
	allowed := int64(probe.InitialDelaySeconds) +
		int64(cmp.Or(probe.PeriodSeconds, defaultPeriod))*int64(cmp.Or(probe.FailureThreshold, defaultFailure))
	probe.InitialDelaySeconds, probe.PeriodSeconds, probe.FailureThreshold = 0, 1, int32(min(allowed, math.MaxInt32))
}
