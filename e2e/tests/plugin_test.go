package tests

import (
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A new sidecar image restarts no running PostgreSQL; the next pod of the cluster has it. This test and the others of this
// file change the plugin's Deployment and so do not run beside others.
func TestNewSidecarImageRollsNothing(t *testing.T) {
	next := os.Getenv("NEXT_SIDECAR_IMAGE")
	if next == "" {
		t.Skip("NEXT_SIDECAR_IMAGE is not set: it is a second name of the sidecar's image")
	}
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "upgraded", 1, never))
	before := s.instances(c)[0]

	deployment := s.plugin()
	previous := environment(deployment, "SIDECAR_IMAGE")
	s.setSidecarImage(deployment, next)
	t.Cleanup(func() { s.ctx = cleanup(t); s.setSidecarImage(s.plugin(), previous) })

	// The operator looks at every cluster when a plugin's pods change; half a minute is several of its loops.
	s.awake(c, 30*time.Second, "a new image")
	after := s.instances(c)[0]
	if after.UID != before.UID || sidecar(after).Image != previous {
		t.Errorf("the instance was replaced: %s with %s became %s with %s",
			before.UID, sidecar(before).Image, after.UID, sidecar(after).Image)
	}

	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	from, to := session.Close()
	s.asleepOnTime(c, from, to, threshold)
	s.annotate(c, scenario.InactivityMinutes, never)
	s.wake(c)
	if got := sidecar(s.instances(c)[0]).Image; got != next {
		t.Errorf("the pod after the wake runs %s, want %s", got, next)
	}
}

// With the plugin down the instances go on; when it is back everything recovers by itself.
func TestPluginDown(t *testing.T) {
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "orphaned", 1, never))
	before := s.instances(c)[0]
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)

	replicas := *s.plugin().Spec.Replicas
	s.scalePlugin(0)
	t.Cleanup(func() { s.ctx = cleanup(t); s.scalePlugin(replicas) })
	s.awake(c, 2*threshold, "an open session, the plugin down")
	s.must(session.Run("select 1"))
	s.scalePlugin(replicas)

	after := s.instances(c)[0]
	if after.UID != before.UID || restarts(after) != restarts(before) {
		t.Errorf("the instance was restarted: %d restarts, then %d", restarts(before), restarts(after))
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	from, to := session.Close()
	s.asleepOnTime(c, from, to, threshold)
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

func (s *story) setSidecarImage(deployment *appsv1.Deployment, image string) {
	s.Helper()
	s.setEnvironment(deployment, corev1.EnvVar{Name: "SIDECAR_IMAGE", Value: image})
}

// setEnvironment gives a variable of the plugin another value.
func (s *story) setEnvironment(deployment *appsv1.Deployment, variable corev1.EnvVar) {
	s.Helper()
	changed := deployment.DeepCopy()
	env := changed.Spec.Template.Spec.Containers[0].Env
	for i := range env {
		if env[i].Name == variable.Name {
			env[i] = variable
		}
	}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(deployment)))
	s.rolledOut()
}

func (s *story) scalePlugin(replicas int32) {
	s.Helper()
	deployment := s.plugin()
	patch := []byte(`{"spec":{"replicas":` + string('0'+replicas) + `}}`)
	s.must(kube.Patch(s.ctx, deployment, client.RawPatch(types.MergePatchType, patch)))
	s.rolledOut()
}

// rolledOut waits until the plugin's Deployment runs what its template says and nothing else.
func (s *story) rolledOut() {
	s.Helper()
	s.must(kube.AwaitDeployment(s.ctx, scenario.OperatorNamespace, scenario.PluginDeployment, 2*time.Minute))
}

func restarts(pod corev1.Pod) int32 {
	total := int32(0)
	for _, status := range pod.Status.ContainerStatuses {
		total += status.RestartCount
	}
	return total
}
