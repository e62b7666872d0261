package tests

import (
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The annotations of a Namespace are defaults for its Clusters: a Cluster's own wins, and while one of them is invalid
// the Clusters keep the defaults that they have.
func TestNamespaceHasDefaults(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	namespace := &corev1.Namespace{}
	namespace.Name = c.Namespace
	s.Cleanup(func() { _ = kube.Annotate(cleanup(s.T), namespace, scenario.InactivityMinutes, nil) })
	copied := func(value string) {
		_, err := kube.AwaitCluster(s.ctx, c, "the default "+value, toSettle, func(c *cnpgv1.Cluster) bool {
			return c.Annotations[scenario.Defaults] == `{"`+scenario.InactivityMinutes+`":"`+value+`"}`
		})
		s.must(err)
	}

	s.annotate(namespace, scenario.InactivityMinutes, soon)
	copied(soon)
	changed := time.Now()
	s.awaitReport(c, c.Status.CurrentPrimary, "that its own threshold is in force", func(r report) bool {
		return r.Known && r.SampledAt.After(changed) && r.Due.After(r.IdleSince.Add(time.Hour))
	})

	s.must(kube.Annotate(s.ctx, c, scenario.InactivityMinutes, nil))
	s.fallsAsleep(c, "its Namespace's threshold has passed")

	s.annotate(namespace, scenario.InactivityMinutes, "never")
	about := &cnpgv1.Cluster{}
	about.Namespace, about.Name = namespace.Name, namespace.Name
	_, err := kube.AwaitEvent(s.ctx, about, "InvalidDefaults", toSettle)
	s.must(err)
	copied(soon)

	s.annotate(namespace, scenario.InactivityMinutes, never)
	copied(never)
	s.wake(c)
}
