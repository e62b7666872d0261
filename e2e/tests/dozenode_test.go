package tests

import (
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A dozing cluster hibernates when its node is cordoned, as kubectl drain does first, although the PodDisruptionBudget allows no
// eviction of its pod. Once there is a node again, a client wakes it.
func TestDoze_hibernatesWhenItsNodeIsCordoned(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := kube.NewCluster(s.namespace, "drained", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozesLater
	s.running(c)
	verify := s.trust(c)
	d := s.turn(c)
	s.annotate(c, scenario.DozeMinutes, dozeMinutes)
	pod := s.dozes(c)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
	t.Cleanup(func() { s.ctx = cleanup(t); d.cordon(node, false) })
	start := time.Now()
	d.cordon(node, true)
	s.fallsAsleep(c, "asleep")
	t.Logf("its pod was gone %.1fs after the node was cordoned", time.Since(start).Seconds())
	message, err := kube.AwaitEvent(s.ctx, c, "HibernationRequested", toSettle)
	s.must(err)
	if !strings.Contains(message, node.Name+": the node is cordoned") {
		t.Errorf("the Event says %q", message)
	}
	_, err = kube.AwaitCluster(s.ctx, c, "without a fence", toSettle, func(c *cnpgv1.Cluster) bool { return !fenced(c) })
	s.must(err)
	d.cordon(node, false)
	s.wakesByClient(c, verify)
}

// Another pod takes the room of a dozing cluster's requests. A client is answered all the same, in the pod that lacks them. The cluster
// does not doze in it again, but hibernates after the time for a doze, and its next pod has them. No other pod can be scheduled
// meanwhile, so this test runs alone.
func TestDoze_hibernatesInsteadWhereItCannotGrow(t *testing.T) {
	whole(t)
	s := alone(t)
	c := kube.NewCluster(s.namespace, "crowded", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	c.Spec.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
	s.running(c)
	verify := s.trust(c)
	pod := s.dozes(c)
	_, err := scenario.Await(s.ctx, kube, &pod, "small", toSettle, func(p *corev1.Pod) bool {
		cpu := requested(p, corev1.ResourceCPU)
		return cpu.String() == "20m"
	})
	s.must(err)
	crowd := s.fills(pod.Spec.NodeName)

	s.annotate(c, scenario.DozeMinutes, dozesLater)
	start := time.Now()
	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+verify, "select 1")
	s.must(err)
	t.Logf("answered after %.2fs", time.Since(start).Seconds())
	_, err = scenario.Await(s.ctx, kube, &pod, "waiting for its requests", toSettle, func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonDeferred
		})
	})
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.annotate(c, scenario.DozeMinutes, dozeMinutes)
	_, err = kube.AwaitCluster(s.ctx, c, "asleep, or dozing", toDoze, func(c *cnpgv1.Cluster) bool { return scenario.HibernationOn(c) || fenced(c) })
	s.must(err)
	if fenced(c) {
		t.Error("it dozes again without its requests")
	}
	s.hibernated(c)
	s.must(kube.Delete(s.ctx, crowd))
	s.wakesByClient(c, verify)
	again := s.instances(c)[0]
	if cpu := requested(&again, corev1.ResourceCPU); cpu.String() != "210m" {
		t.Errorf("the next pod requests %s", cpu.String())
	}
}

// fills makes a pod that requests all CPU of a node that no other pod has requested.
func (s *story) fills(name string) *corev1.Pod {
	s.Helper()
	var node corev1.Node
	s.must(kube.Get(s.ctx, types.NamespacedName{Name: name}, &node))
	free := node.Status.Allocatable[corev1.ResourceCPU]
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods))
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName == name && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			free.Sub(requested(p, corev1.ResourceCPU))
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "crowd"},
		Spec: corev1.PodSpec{
			NodeName: name, TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{
				Name: "crowd", Image: s.client().Spec.Containers[0].Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "infinity"},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: free}},
			}},
		},
	}
	s.must(kube.Create(s.ctx, pod))
	_, err := scenario.Await(s.ctx, kube, pod, "running", toHealthy, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	s.must(err)
	return pod
}

// The node restarts while a cluster dozes: the kubelet, containerd and the containers of its pod end and are started again. The
// cluster goes on dozing in its pod, and a client wakes it there. Nobody else can run commands in pods meanwhile, so this test runs alone.
func TestDoze_survivesARestartOfItsNode(t *testing.T) {
	whole(t)
	s := alone(t)
	s.onlyHere()
	layout, err := cluster.DefaultLayout("..")
	s.must(err)
	c := s.dozingCluster("rebooted")
	verify := s.trust(c)
	before := s.dozes(c)
	start := time.Now()
	s.must(layout.RestartNode(s.ctx, func() error { return scenario.KillPod(before.UID) }))
	_, err = scenario.Await(s.ctx, kube, before.DeepCopy(), "with other containers", toHealthy, func(p *corev1.Pod) bool {
		return !slices.ContainsFunc(p.Status.ContainerStatuses, func(now corev1.ContainerStatus) bool {
			return now.State.Running == nil || slices.ContainsFunc(before.Status.ContainerStatuses, func(then corev1.ContainerStatus) bool {
				return now.ContainerID == then.ContainerID
			})
		})
	})
	s.must(err)
	t.Logf("its containers ran again %.1fs after the node went down", time.Since(start).Seconds())
	if now := s.dozes(c); now.UID != before.UID {
		t.Error("the pod was replaced")
	}
	s.wakesByClient(c, verify)
}

// cordon sets whether the node is unschedulable.
func (s *disturber) cordon(node *corev1.Node, yes bool) {
	s.Helper()
	patch := `{"spec":{"unschedulable":null}}`
	if yes {
		patch = `{"spec":{"unschedulable":true}}`
	}
	s.must(kube.Patch(s.ctx, node, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// A Backup that a person makes of a dozing cluster wakes it in its pod and completes, and then the cluster dozes again.
func TestDoze_aBackupWakesIt(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	neighbour := s.neighbour(image)
	c := kube.NewCluster(s.namespace, "saved", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
	s.running(c)
	pod := s.dozes(c)
	start := time.Now()
	backup := s.backup(c, neighbour.Name, 5*time.Second)
	t.Logf("the Backup was being taken after %.1fs", time.Since(start).Seconds())
	_, err := scenario.Await(s.ctx, kube, backup, "completed", toHealthy, func(b *cnpgv1.Backup) bool { return b.Status.Phase == cnpgv1.BackupPhaseCompleted })
	s.must(err)
	message, err := kube.AwaitEvent(s.ctx, c, "Woken", toSettle)
	s.must(err)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if by := "Backup " + backup.Name; !strings.Contains(message, by) || !strings.Contains(c.Annotations[scenario.LastWake], by) {
		t.Errorf("the Event says %q, the annotation %q", message, c.Annotations[scenario.LastWake])
	}
	if again := s.dozes(c); again.UID != pod.UID {
		t.Error("the pod was replaced")
	}
}
