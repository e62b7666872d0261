package tests

import (
	"os/exec"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// After a switchover and after a failover the new primary's sidecar takes over, with a new idle clock.
func TestSwitchoverAndFailover(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(2, awake)
	first := c.Status.CurrentPrimary
	const clock = 30 * time.Second

	changed := c.DeepCopy()
	for _, name := range c.Status.InstanceNames {
		if name != first {
			changed.Status.TargetPrimary = name
		}
	}
	changed.Status.TargetPrimaryTimestamp = time.Now().UTC().Format(time.RFC3339)
	changed.Status.Phase = cnpgv1.PhaseSwitchover
	s.must(kube.Status().Patch(s.ctx, changed, client.MergeFrom(c)))
	s.annotate(c, scenario.InactivityMinutes, "0.5")
	_, err := kube.AwaitCluster(s.ctx, c, "switched over", toHealthy, func(c *cnpgv1.Cluster) bool {
		return c.Status.CurrentPrimary == changed.Status.TargetPrimary
	})
	s.must(err)
	s.sleepsAfresh(c, "the switchover", clock)

	s.annotate(c, scenario.InactivityMinutes, never)
	s.wake(c)
	second := c.Status.CurrentPrimary
	s.annotate(c, scenario.InactivityMinutes, "0.5")
	doomed := &corev1.Pod{}
	doomed.Namespace, doomed.Name = c.Namespace, second
	s.must(kube.Delete(s.ctx, doomed, client.GracePeriodSeconds(0)))
	_, err = kube.AwaitCluster(s.ctx, c, "failed over", toHealthy, func(c *cnpgv1.Cluster) bool {
		return c.Status.CurrentPrimary != second
	})
	s.must(err)
	s.sleepsAfresh(c, "the failover", clock)
}

// sleepsAfresh checks that the cluster falls asleep no earlier than the threshold after the promotion of its new primary.
func (s *story) sleepsAfresh(c *cnpgv1.Cluster, what string, clock time.Duration) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "asleep after "+what, toHealthy+toSleep, scenario.HibernationOn)
	s.must(err)
	promoted, err := time.Parse(time.RFC3339Nano, c.Status.CurrentPrimaryTimestamp)
	s.must(err)
	if at := asleepSince(c); at.Before(promoted.Add(clock)) {
		s.Errorf("put to sleep %s after %s, want at least %s", at.Sub(promoted), what, clock)
	}
	s.hibernated(c)
}

// Adding the plugin to a running cluster injects the sidecar in the operator's rolling update. Removing it, by the command line,
// removes the sidecar and its rights and resumes what was suspended, even while the cluster sleeps, and leaves other plugins.
func TestPluginComesAndGoes(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "changing", 1, thresholdMinutes)
	c.Spec.Plugins = nil
	s.running(c)
	if sidecar(s.instances(c)[0]) != nil {
		t.Fatal("a cluster that does not list the plugin has the sidecar")
	}
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))

	other := cnpgv1.PluginConfiguration{Name: "other.example.org", Enabled: new(bool)} // which the operator does not call
	s.list(c, cnpgv1.PluginConfiguration{Name: scenario.PluginName}, other)
	_, err := scenario.Await(s.ctx, kube, &s.instances(c)[0], "restarted with the sidecar", toHealthy, func(p *corev1.Pod) bool {
		return sidecar(*p) != nil
	})
	s.must(err)
	s.fallsAsleep(c, "asleep")
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
	if !suspended(schedule) {
		t.Error("the schedule is not suspended while the cluster sleeps")
	}
	name := c.Name + ".scale-to-zero"
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &rbacv1.Role{}))

	program := buildStatic(t, "../..", "./plugin/kubectl")
	run := func(arguments ...string) {
		s.Helper()
		out, err := exec.CommandContext(s.ctx, program, append(arguments, "-n", s.namespace)...).CombinedOutput()
		t.Logf("%s: %s", arguments, out)
		s.must(err)
	}
	run("detach", c.Name, "--dry-run")
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if len(c.Spec.Plugins) != 2 {
		t.Errorf("after a dry run it lists %v", c.Spec.Plugins)
	}
	run("detach", c.Name)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if len(c.Spec.Plugins) != 1 || c.Spec.Plugins[0].Name != other.Name {
		t.Errorf("once detached it lists %v", c.Spec.Plugins)
	}
	_, err = scenario.Await(s.ctx, kube, schedule, "resumed by the plugin", toSettle, func(b *cnpgv1.ScheduledBackup) bool {
		return !suspended(b) && b.Annotations[scenario.Suspended] == ""
	})
	s.must(err)
	s.must(kube.AwaitGone(s.ctx, &rbacv1.RoleList{}, s.namespace, name, toSettle))
	s.must(kube.AwaitGone(s.ctx, &rbacv1.RoleBindingList{}, s.namespace, name, toSettle))
	run("wake", c.Name)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if sidecar(s.instances(c)[0]) != nil {
		t.Error("the sidecar is still there after the plugin was removed")
	}
}

// list sets the plugins of the cluster.
func (s *story) list(c *cnpgv1.Cluster, plugins ...cnpgv1.PluginConfiguration) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	changed := c.DeepCopy()
	changed.Spec.Plugins = plugins
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(c)))
}
