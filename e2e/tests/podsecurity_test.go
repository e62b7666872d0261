package tests

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The pods of our Deployments, and the sidecar by itself, satisfy the restricted Pod Security Standard: the API server accepts
// them in a namespace that enforces it.
func TestPodSecurityRestricted(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "strict", 1, never))
	var namespace corev1.Namespace
	s.must(kube.Get(s.ctx, client.ObjectKey{Name: s.namespace}, &namespace))
	before := namespace.DeepCopy()
	namespace.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	s.must(kube.Patch(s.ctx, &namespace, client.MergeFrom(before)))

	alone := corev1.PodSpec{Containers: []corev1.Container{*sidecar(s.instances(c)[0])}}
	for _, mount := range alone.Containers[0].VolumeMounts {
		alone.Volumes = append(alone.Volumes, corev1.Volume{Name: mount.Name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	alone.Volumes = once(alone.Volumes)
	lax := *alone.DeepCopy()
	lax.Containers[0].SecurityContext = nil
	create := func(spec corev1.PodSpec) error {
		spec.ServiceAccountName = c.Name // an existing one
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: "dry-"}, Spec: spec}
		return kube.Create(s.ctx, pod, client.DryRunAll)
	}
	for deadline := time.Now().Add(toSettle); create(lax) == nil; pause(s, pollEvery) { // admission knows namespaces from a cache
		if time.Now().After(deadline) {
			t.Fatal("the standard is not enforced: the sidecar is accepted without its own settings")
		}
	}
	for _, row := range []struct {
		rule string
		spec corev1.PodSpec
	}{
		{"the plugin's pods", s.plugin().Spec.Template.Spec},
		{"those of what makes the certificates", s.deployment(scenario.PluginDeployment + "-certificates").Spec.Template.Spec},
		{"the sidecar, whatever the pod says of itself", alone},
	} {
		if err := create(row.spec); err != nil {
			t.Errorf("%s: %v", row.rule, err)
		}
	}
}

// once removes duplicate volumes, keeping the order.
func once(volumes []corev1.Volume) []corev1.Volume {
	var found []corev1.Volume
	has := map[string]bool{}
	for _, volume := range volumes {
		if !has[volume.Name] {
			has[volume.Name] = true
			found = append(found, volume)
		}
	}
	return found
}
