package tests

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// tokens is where Kubernetes mounts the token of a pod's service account.
const tokens = "/var/run/secrets/kubernetes.io/serviceaccount"

// CloudNativePG 1.31 does not mount a token in the instances' pods. A sidecar in such a pod reads its Cluster with the token
// that the plugin projects. The test runs an instance's sidecar in a separate pod, which is never primary.
func TestOwnTokenSuffices(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	pod := without(s.instances(c)[0])
	s.must(kube.Create(s.ctx, pod))
	_, err := scenario.Await(s.ctx, kube, pod, "running", toHealthy, scenario.Ready)
	s.must(err)
	if len(pod.Spec.Volumes) != len(pod.Spec.Containers[0].VolumeMounts) {
		t.Errorf("Kubernetes added a volume: %+v", pod.Spec.Volumes)
	}
	mounts := pod.Spec.Containers[0].VolumeMounts
	if !slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokens }) {
		t.Errorf("no token is mounted: %+v", mounts)
	}
	s.awaitMetric(pod.Name, `cnpg_scale_to_zero_threshold_seconds{cluster="`+c.Name+`"} 36000`)
	s.awaitMetric(pod.Name, `cnpg_scale_to_zero_blocked{cluster="`+c.Name+`",reason="not_primary"} 1`)
	s.must(kube.Delete(s.ctx, pod))
}

// without returns a pod that has only an instance's sidecar and the mounts that the sidecar asks for.
func without(instance corev1.Pod) *corev1.Pod {
	container := *sidecar(instance)
	for i := range container.Env {
		if container.Env[i].Name == "CLUSTER_NAME" { // a pod that is not the operator's must not have its label
			container.Env[i] = corev1.EnvVar{Name: "CLUSTER_NAME", Value: instance.Labels["cnpg.io/cluster"]}
		}
	}
	var volumes []corev1.Volume
	for _, volume := range instance.Spec.Volumes {
		if slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume.Name }) {
			volumes = append(volumes, volume)
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: instance.Namespace, Name: "alone"},
		Spec: corev1.PodSpec{
			ServiceAccountName: instance.Spec.ServiceAccountName, AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: instance.Spec.SecurityContext, Containers: []corev1.Container{container}, Volumes: volumes,
		},
	}
}
