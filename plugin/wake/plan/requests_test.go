package plan

import (
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestRequestsOf(t *testing.T) {
	t.Parallel()
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	for rule, row := range map[string]struct {
		resources corev1.ResourceRequirements
		want      float64
	}{
		"those of every instance":             {corev1.ResourceRequirements{Requests: list("250m")}, 0.5},
		"a limit stands for a request":        {corev1.ResourceRequirements{Limits: list("2")}, 4},
		"a request is smaller than its limit": {corev1.ResourceRequirements{Requests: list("1"), Limits: list("2")}, 2},
		"none":                                {corev1.ResourceRequirements{}, 0},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			c := &cnpgv1.Cluster{Spec: cnpgv1.ClusterSpec{Instances: 2, Resources: row.resources}}
			if got := RequestsOf(c); got != (Requests{CPU: row.want}) {
				t.Errorf("got %+v, want %v cores and no memory", got, row.want)
			}
		})
	}
}
