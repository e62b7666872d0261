package tests

import (
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The operator deletes the only instance of a running cluster to have it injected. Where a LimitRange demands more than the sidecar
// requests by default, the instance comes back with a sidecar that requests as much as it must.
func TestLimitRange_theSidecarFitsIt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	least := resource.MustParse("50m")
	s.must(kube.Create(s.ctx, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "containers"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Min: corev1.ResourceList{corev1.ResourceCPU: least},
		}}},
	}))
	c := kube.NewCluster(s.namespace, "limited", 1, never)
	c.Spec.Plugins = nil
	s.starts(c)

	s.list(c, cnpgv1.PluginConfiguration{Name: scenario.PluginName})
	_, err := scenario.Await(s.ctx, kube, &s.instances(c)[0], "restarted with the sidecar", toHealthy, func(p *corev1.Pod) bool {
		return sidecar(*p) != nil
	})
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if request := sidecar(s.instances(c)[0]).Resources.Requests.Cpu(); request.Cmp(least) != 0 {
		t.Errorf("the sidecar requests %s of CPU, want %s", request, &least)
	}
}
