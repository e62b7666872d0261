package tests

import (
	"slices"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A minor upgrade of PostgreSQL succeeds with the sidecar in place, and the cluster sleeps on time afterwards.
func TestMinorUpgrade(t *testing.T) {
	whole(t)
	t.Parallel()
	next := provided(t, "NEXT_POSTGRES_IMAGE")
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "minor", 2, never))
	s.annotate(c, scenario.InactivityMinutes, "0.5")
	session := s.open(c, "rw")

	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	changed := c.DeepCopy()
	changed.Spec.ImageName = next
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(c)))
	session.Close() // the primary's shutdown would wait for it
	slept := false
	_, err := kube.AwaitCluster(s.ctx, c, "upgraded", toHealthy, func(c *cnpgv1.Cluster) bool {
		slept = scenario.HibernationOn(c)
		return slept || scenario.Healthy(c) && s.run(c, next)
	})
	s.must(err)
	old := func(pod corev1.Pod) bool { return postgresImage(pod) != next }
	if slept && slices.ContainsFunc(s.instances(c), old) {
		t.Fatal("the cluster was put to sleep in the middle of its upgrade")
	}
	s.annotate(c, scenario.InactivityMinutes, never)
	if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); scenario.HibernationOn(c) { // the threshold may have passed
		s.hibernated(c)
		s.wake(c)
	}
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toHealthy))
	session = s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	before, after := session.Close()
	s.asleepOnTime(c, before, after, threshold)
}

// run reports whether every instance of the cluster runs the image and has the sidecar.
func (s *story) run(c *cnpgv1.Cluster, image string) bool {
	s.Helper()
	pods := s.instances(c)
	for _, pod := range pods {
		if postgresImage(pod) != image || sidecar(pod) == nil {
			return false
		}
	}
	return len(pods) == c.Spec.Instances
}

func postgresImage(pod corev1.Pod) string {
	for _, container := range pod.Spec.Containers {
		if container.Name == "postgres" {
			return container.Image
		}
	}
	return ""
}
