package cnpgi

import (
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
)

func TestSidecars_requestByTheClassOfThePod(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	sidecars := Sidecars{
		Burstable:  corev1.ResourceRequirements{Requests: list("250m", "1Ki"), Limits: list("1", "1Mi")},
		Guaranteed: corev1.ResourceRequirements{Requests: list("500m", "2Ki"), Limits: list("1", "1Mi")},
	}
	for rule, row := range map[string]struct {
		resources corev1.ResourceRequirements
		want      plan.Requests
	}{
		"a cluster without requests has Burstable pods":    {corev1.ResourceRequirements{}, plan.Requests{CPU: 0.5, Memory: 2048}},
		"so has one that requests less than its limits":    {corev1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("2", "1Gi")}, plan.Requests{CPU: 0.5, Memory: 2048}},
		"one that requests its limits has Guaranteed ones": {corev1.ResourceRequirements{Limits: list("2", "1Gi")}, plan.Requests{CPU: 1, Memory: 4096}},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			c := &cnpgv1.Cluster{Spec: cnpgv1.ClusterSpec{Instances: 2, Resources: row.resources}}
			if got := sidecars.Of(c); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}
