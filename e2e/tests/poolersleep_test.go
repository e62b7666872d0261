package tests

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Poolers have no instances while their cluster sleeps. A client of each, and of a Service that a person made for one, wakes the
// cluster and is answered at once; then each has the instances that it had. A person's number stands.
func TestPoolersSleep(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "pools", 2, never))
	s.annotate(c, scenario.Poolers, "sleep")
	poolers := map[string]*cnpgv1.Pooler{
		"session": s.pooler(c, "session", cnpgv1.PoolerTypeRW, cnpgv1.PgBouncerPoolModeSession, 1),
		"trans":   s.pooler(c, "trans", cnpgv1.PoolerTypeRW, cnpgv1.PgBouncerPoolModeTransaction, 2),
		"standby": s.pooler(c, "standby", cnpgv1.PoolerTypeRO, cnpgv1.PgBouncerPoolModeTransaction, 1),
	}
	s.must(kube.Create(s.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-own"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"cnpg.io/poolerName": poolers["trans"].Name},
			Ports:    []corev1.ServicePort{{Port: 5432, TargetPort: intstr.FromInt32(5432)}},
		},
	}))
	for _, row := range []struct{ service, want string }{
		{"rw", "false"}, {"session", "false"}, {"trans", "false"}, {"standby", "true"}, {"own", "false"},
	} {
		s.must(kube.AwaitReachable(s.ctx, c, row.service, toHealthy))
		s.sleeps(c)
		for _, pooler := range poolers {
			s.scaled(pooler, 0)
		}
		s.awaitSlices(c, toSettle, "rw", "r", "ro", "session", "trans", "standby", "own")
		start := time.Now()
		answer, tries, err := s.askPooler(c, row.service)
		t.Logf("answered through %s after %.2fs, at try %d", row.service, time.Since(start).Seconds(), tries)
		if err != nil || answer != row.want {
			t.Errorf("the answer through %s is %q (%v)", row.service, answer, err)
		}
		s.scaled(poolers["session"], 1)
		s.scaled(poolers["trans"], 2)
		s.scaled(poolers["standby"], 1)
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, toHealthy)
	}

	s.sleeps(c)
	s.scaled(poolers["trans"], 0)
	s.must(kube.Patch(s.ctx, poolers["trans"].DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"instances":1}}`))))
	s.wake(c)
	s.scaled(poolers["session"], 1)
	s.scaled(poolers["trans"], 1)
}

// pooler makes a Pooler whose idle connections do not keep the cluster awake.
func (s *story) pooler(c *cnpgv1.Cluster, name string, kind cnpgv1.PoolerType, mode cnpgv1.PgBouncerPoolMode, instances int32) *cnpgv1.Pooler {
	s.Helper()
	pooler := kube.NewPooler(c, c.Name+"-"+name)
	pooler.Spec.Type, pooler.Spec.PgBouncer.PoolMode, pooler.Spec.Instances = kind, mode, ptr.To(instances)
	pooler.Spec.PgBouncer.Parameters = map[string]string{"server_idle_timeout": "1", "server_login_retry": "1"}
	s.must(kube.Create(s.ctx, pooler))
	return pooler
}

// scaled waits until the Pooler is to have so many instances, and bears the plugin's mark only without any.
func (s *story) scaled(pooler *cnpgv1.Pooler, instances int32) {
	s.Helper()
	_, err := scenario.Await(s.ctx, kube, pooler, "scaled", toSettle, func(p *cnpgv1.Pooler) bool {
		return ptr.Deref(p.Spec.Instances, 1) == instances && (p.Annotations[scenario.PoolerInstances] != "") == (instances == 0)
	})
	s.must(err)
}
