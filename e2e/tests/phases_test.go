package tests

import (
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// intercept installs an Interceptor for the test's namespace until the test ends.
func (s *story) intercept() *scenario.Interceptor {
	s.Helper()
	interceptor, err := kube.Intercept(s.ctx, s.namespace)
	s.must(err)
	s.Cleanup(func() {
		if err := kube.StopIntercepting(cleanup(s.T), s.namespace, interceptor); err != nil {
			s.Error(err)
		}
	})
	return interceptor
}

// held waits until a change is held, and fails the test if none is.
func (s *story) held(held <-chan scenario.Change) {
	s.Helper()
	timer := time.NewTimer(toSleep)
	defer timer.Stop()
	select {
	case <-held:
	case <-timer.C:
		s.Fatalf("the change that was to be held did not come within %s", toSleep)
	case <-s.ctx.Done():
		s.Fatal(s.ctx.Err())
	}
}

// acknowledges reports whether a change is the gateway's acknowledgement.
func acknowledges(change scenario.Change) bool {
	before, after := change.Before.GetAnnotations(), change.After.GetAnnotations()
	return change.Kind == cnpgv1.ClusterKind && after[scenario.GatewayReady] != "" && after[scenario.GatewayReady] != before[scenario.GatewayReady]
}

// turnsHibernationOn reports whether a change turns hibernation on.
func turnsHibernationOn(change scenario.Change) bool {
	before, after := change.Before.GetAnnotations(), change.After.GetAnnotations()
	return change.Kind == cnpgv1.ClusterKind && after[scenario.Hibernation] == "on" && before[scenario.Hibernation] != "on"
}

// suspends returns a function that reports whether a change is the count'th one that suspends a schedule, or a later one: the sidecar
// waits for an answer for five seconds, and then tries again from the beginning.
func suspends(count int) func(scenario.Change) bool {
	return func(change scenario.Change) bool {
		if change.Kind != "ScheduledBackup" || isSuspended(change.Before) || !isSuspended(change.After) {
			return false
		}
		count--
		return count <= 0
	}
}

func isSuspended(schedule *unstructured.Unstructured) bool {
	suspended, _, _ := unstructured.NestedBool(schedule.Object, "spec", "suspend")
	return suspended
}

// notAnnounced waits until no sleep is announced.
func (s *story) notAnnounced(c *cnpgv1.Cluster) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "not about to sleep", between+toSettle, func(c *cnpgv1.Cluster) bool {
		return c.Annotations[scenario.Announced] == ""
	})
	s.must(err)
}

// decided waits until the handover has ended, and reports whether the cluster sleeps.
func (s *story) decided(c *cnpgv1.Cluster) bool {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "asleep or awake", between+toSettle, func(c *cnpgv1.Cluster) bool {
		return scenario.HibernationOn(c) || c.Annotations[scenario.Announced] == ""
	})
	s.must(err)
	return scenario.HibernationOn(c)
}
