package command

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// dozes reports whether the annotations say that the cluster is to doze.
func (s seen) dozes() bool {
	return s.view.Problems == 0 && s.view.Policy.Enabled && s.view.Policy.Doze != 0
}

// dozingSince returns when the cluster was fenced for its doze; zero if that is not known.
func (s seen) dozingSince() time.Time {
	at, _ := time.Parse(time.RFC3339, s.cluster.Annotations[contract.AnnotationDozingSince]) // zero if a person wrote something else
	return at.UTC()
}

// hibernatesAt returns when the dozing cluster will hibernate if nothing happens; zero if that is not known.
func (s seen) hibernatesAt() time.Time {
	since := s.dozingSince()
	if since.IsZero() || !s.dozes() {
		return time.Time{}
	}
	return since.Add(s.view.Policy.Threshold - s.view.Policy.Doze)
}

// wokenFromDoze returns when a client ended the doze of a cluster whose pod is not ready again yet, or zero.
func (s seen) wokenFromDoze(now time.Time) time.Time {
	wake, err := contract.ParseLastWake(s.cluster.Annotations[contract.AnnotationLastWake])
	if err != nil || wake.Depth != contract.DepthDoze || now.Sub(wake.At) >= wakingLimit || !s.podsKnown || slices.ContainsFunc(s.pods, ready) {
		return time.Time{}
	}
	return wake.At
}

// dozeBlockers returns the reasons against a doze that can be seen from the pod, without asking the sidecar: it may not answer, or be
// too old to know the feature.
func (s seen) dozeBlockers() []string {
	primary := s.primary()
	if !s.dozes() || primary == nil || slices.ContainsFunc(primary.Spec.Containers, withdrawsReadiness) {
		return nil
	}
	return []string{string(idle.ReasonPodMadeBefore)}
}

// withdrawsReadiness reports whether the container is a sidecar that has the readiness probe.
func withdrawsReadiness(c corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == contract.EnvReadinessPort })
}
