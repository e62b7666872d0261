package cnpgi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestInject_takesTheResourcesOfThePodsClass(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		quantities := corev1.ResourceList{}
		for name, value := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if value != "" {
				quantities[name] = resource.MustParse(value)
			}
		}
		return quantities
	}
	settings := configured()
	for _, row := range []struct {
		rule       string
		resources  corev1.ResourceRequirements
		change     func(*corev1.Pod)
		guaranteed bool
	}{
		{"requests that equal limits are Guaranteed", corev1.ResourceRequirements{Requests: list("2", "1Gi"), Limits: list("2000m", "1024Mi")}, nil, true},
		{"limits alone are, too", corev1.ResourceRequirements{Limits: list("2", "1Gi")}, nil, true},
		{"requests below limits are not", corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("2", "1Gi")}, nil, false},
		{"requests alone are not", corev1.ResourceRequirements{Requests: list("2", "1Gi")}, nil, false},
		{"limits of the memory alone are not", corev1.ResourceRequirements{Limits: list("", "1Gi")}, nil, false},
		{"a limit of nothing is none", corev1.ResourceRequirements{Limits: list("0", "1Gi")}, nil, false},
		{"no resources are not", corev1.ResourceRequirements{}, nil, false},
		{"another container without limits is in the way", corev1.ResourceRequirements{Limits: list("2", "1Gi")},
			func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "other"}) }, false},
		{"so is an init container", corev1.ResourceRequirements{Limits: list("2", "1Gi")},
			func(p *corev1.Pod) {
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "other"})
			}, false},
		{"a sidecar of ours is not", corev1.ResourceRequirements{Limits: list("2", "1Gi")},
			func(p *corev1.Pod) {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: containerName})
			}, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			pod := instanceWith(t, row.resources)
			if row.change != nil {
				row.change(pod)
			}
			injected, err := injectSidecar(pod, settings)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(settings.Resources.In(row.guaranteed), injected.Spec.Containers[len(injected.Spec.Containers)-1].Resources); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("the constant form is the same in every pod", func(t *testing.T) {
		t.Parallel()
		for _, resources := range []corev1.ResourceRequirements{{}, {Limits: list("2", "1Gi")}} {
			injected, err := injectSidecar(instanceWith(t, resources), placeholder())
			if err != nil {
				t.Fatal(err)
			}
			want := corev1.ResourceRequirements{Requests: list("100m", "64Mi"), Limits: list("100m", "64Mi")}
			if diff := cmp.Diff(want, injected.Spec.Containers[len(injected.Spec.Containers)-1].Resources); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
		}
	})
}
