package tests

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// With the plugin entirely down PostgreSQL keeps running, and nothing is done for the clusters that list it. When it is back
// everything recovers by itself, including what was requested meanwhile.
func TestPluginDown(t *testing.T) {
	whole(t)
	down := 10 * time.Second // after another cluster's failover, which shows how long one takes
	if soaking {
		down = 2 * time.Minute
	}
	s := disturbing(t)
	used, called, summoned := s.cluster("used", 1), s.cluster("called", 1), s.cluster("summoned", 1)
	bereft, stranger := s.cluster("bereft", 2), s.cluster("stranger", 2)
	stranger.Spec.Plugins = nil
	s.together(used, called, summoned, bereft, stranger)
	d := s.turn(used, called, summoned, bereft, stranger)
	s.sleepTogether(called, summoned)
	session, before := s.open(used, "rw"), s.lives(used)
	s.annotate(used, scenario.InactivityMinutes, thresholdMinutes)

	replicas := *s.plugin().Spec.Replicas
	t.Cleanup(func() { s.ctx = cleanup(t); d.scalePlugin(replicas) })
	d.scalePlugin(0)
	s.othersGone()
	gone := time.Now()
	lost := bereft.Status.CurrentPrimary
	s.must(kube.Delete(s.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: lost}}, client.GracePeriodSeconds(0)))
	s.must(failOver(s.ctx, stranger))
	t.Logf("the cluster that does not list the plugin failed over %.1fs after it was gone", time.Since(gone).Seconds())
	s.must(kube.Wake(s.ctx, summoned))
	answered := make(chan error, 1)
	go func() {
		_, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf(`export PGPASSWORD=%s
until psql -XAtq "host=called-rw user=app dbname=app %s" -c 'select 1' 2>/dev/null; do sleep 0.2; done`, s.password(called), oneOfMany))
		answered <- err
	}()
	s.awake(used, down, "active", "an open session, the plugin down")
	s.must(session.Run("select 1"))
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(bereft), bereft))
	t.Logf("after %.0fs the operator says %q: %s", time.Since(gone).Seconds(), bereft.Status.Phase, bereft.Status.PhaseReason)
	if bereft.Status.CurrentPrimary != lost || len(s.instances(bereft)) != 1 || len(s.instances(summoned)) != 0 {
		t.Errorf("without the plugin the operator went on: the primary of %s is %s with %d pods, %s has %d",
			bereft.Name, bereft.Status.CurrentPrimary, len(s.instances(bereft)), summoned.Name, len(s.instances(summoned)))
	}
	if after := s.lives(used); !maps.Equal(before, after) {
		t.Errorf("the instance in use was restarted: %v, then %v", before, after)
	}

	d.scalePlugin(replicas)
	back := time.Now()
	s.must(<-answered)
	t.Logf("the client that had called meanwhile was answered %.1fs after the plugin was back", time.Since(back).Seconds())
	_, err := kube.AwaitCluster(s.ctx, bereft, "failed over", toHealthy, func(c *cnpgv1.Cluster) bool { return c.Status.CurrentPrimary != lost })
	s.must(err)
	for _, c := range []*cnpgv1.Cluster{used, called, summoned, bereft} {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		t.Logf("%s was healthy %.1fs after the plugin was back", c.Name, time.Since(back).Seconds())
	}
	s.awaitSlices(called, between+toSettle)
	from, to := session.Close()
	s.asleepOnTime(used, from, to, threshold)
}

func (s *story) plugin() *appsv1.Deployment { return s.deployment(scenario.PluginDeployment) }

func (s *story) deployment(name string) *appsv1.Deployment {
	s.Helper()
	var deployment appsv1.Deployment
	key := client.ObjectKey{Namespace: scenario.OperatorNamespace, Name: name}
	s.must(kube.Get(s.ctx, key, &deployment))
	return &deployment
}

func environment(deployment *appsv1.Deployment, name string) string {
	for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// setEnvironment sets an environment variable of the plugin.
func (s *disturber) setEnvironment(deployment *appsv1.Deployment, variable corev1.EnvVar) {
	s.Helper()
	changed := deployment.DeepCopy()
	plugin := &changed.Spec.Template.Spec.Containers[0]
	plugin.Env = slices.DeleteFunc(plugin.Env, func(e corev1.EnvVar) bool { return e.Name == variable.Name })
	plugin.Env = append(plugin.Env, variable)
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.rolledOut()
}

// replacePlugin begins a rollout of the plugin without another change.
func (s *disturber) replacePlugin() {
	s.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"example.org/restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
	s.must(kube.Patch(s.ctx, s.plugin(), client.RawPatch(types.MergePatchType, patch)))
}

// endReplica deletes a pod of the plugin.
func (s *disturber) endReplica(pod corev1.Pod, options ...client.DeleteOption) {
	s.Helper()
	s.must(kube.Delete(s.ctx, &pod, options...))
}

func (s *disturber) scalePlugin(replicas int32) {
	s.Helper()
	deployment := s.plugin()
	patch := []byte(`{"spec":{"replicas":` + string('0'+replicas) + `}}`)
	s.must(kube.Patch(s.ctx, deployment, client.RawPatch(types.MergePatchType, patch)))
	s.rolledOut()
}

// othersGone waits, after a rollout, until the plugin's former pods have ended: they keep serving the operator for a while after
// SIGTERM, and sleeping clusters until then.
func (s *story) othersGone() {
	s.Helper()
	plugin := s.plugin()
	for deadline := time.Now().Add(toHealthy); ; pause(s, pollEvery) {
		var pods corev1.PodList
		s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(plugin.Spec.Selector.MatchLabels)))
		if len(pods.Items) == int(*plugin.Spec.Replicas) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the plugin has %d pods, want %d", len(pods.Items), *plugin.Spec.Replicas)
		}
	}
}

// rolledOut waits until the plugin's Deployment has rolled out and its pods are ready: its status learns of a pod's death later.
func (s *story) rolledOut() {
	s.Helper()
	s.must(kube.AwaitDeployment(s.ctx, scenario.OperatorNamespace, scenario.PluginDeployment, toHealthy))
	want := int(*s.plugin().Spec.Replicas)
	for deadline := time.Now().Add(toHealthy); ; pause(s, pollEvery) {
		ready := slices.DeleteFunc(s.replicas(), func(pod corev1.Pod) bool { return !scenario.Ready(&pod) })
		if len(ready) == want {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%d pods of the plugin are ready, want %d", len(ready), want)
		}
	}
}

func restarts(pod corev1.Pod) int32 {
	total := int32(0)
	for _, status := range pod.Status.ContainerStatuses {
		total += status.RestartCount
	}
	return total
}
