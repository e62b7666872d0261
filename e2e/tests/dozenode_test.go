package tests

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A dozing cluster hibernates when its node is cordoned, as kubectl drain does first, although the PodDisruptionBudget allows no
// eviction of its pod. Once there is a node again, a client wakes it.
func TestDoze_hibernatesWhenItsNodeIsCordoned(t *testing.T) {
	s := disturbing(t)
	c := kube.NewCluster(s.namespace, "drained", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozesLater
	s.running(c)
	verify := s.trust(c)
	s.turn(c)
	s.annotate(c, scenario.DozeMinutes, dozeMinutes)
	pod := s.dozes(c)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
	t.Cleanup(func() { s.ctx = cleanup(t); s.cordon(node, false) })
	start := time.Now()
	s.cordon(node, true)
	s.fallsAsleep(c, "asleep")
	t.Logf("its pod was gone %.1fs after the node was cordoned", time.Since(start).Seconds())
	message, err := kube.AwaitEvent(s.ctx, c, "HibernationRequested", toSettle)
	s.must(err)
	if !strings.Contains(message, node.Name+": the node is cordoned") {
		t.Errorf("the Event says %q", message)
	}
	_, err = kube.AwaitCluster(s.ctx, c, "without a fence", toSettle, func(c *cnpgv1.Cluster) bool { return !fenced(c) })
	s.must(err)
	s.cordon(node, false)
	s.wakesByClient(c, verify)
}

// The node restarts while a cluster dozes: the kubelet, containerd and the containers of its pod end and are started again. The
// cluster goes on dozing in its pod, and a client wakes it there. Nobody else can run commands in pods meanwhile, so this test runs alone.
func TestDoze_survivesARestartOfItsNode(t *testing.T) {
	s := alone(t)
	layout, err := cluster.DefaultLayout("..")
	s.must(err)
	c := s.dozingCluster("rebooted")
	verify := s.trust(c)
	before := s.dozes(c)
	start := time.Now()
	err = layout.RestartNode(s.ctx, func() error { return scenario.KillPod(before.UID) })
	if errors.Is(err, cluster.ErrElsewhere) {
		t.Skip(err)
	}
	s.must(err)
	_, err = kube.AwaitPod(s.ctx, before.DeepCopy(), "with other containers", toHealthy, func(p *corev1.Pod) bool {
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

// cordon says whether pods may be placed on the node.
func (s *story) cordon(node *corev1.Node, yes bool) {
	s.Helper()
	patch := `{"spec":{"unschedulable":null}}`
	if yes {
		patch = `{"spec":{"unschedulable":true}}`
	}
	s.must(kube.Patch(s.ctx, node, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// A Backup that a person makes of a dozing cluster wakes it in its pod and completes, and then the cluster dozes again.
func TestDoze_aBackupWakesIt(t *testing.T) {
	image := neighbourImage(t)
	t.Parallel()
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
	_, err := kube.AwaitBackup(s.ctx, backup, "completed", toHealthy, func(b *cnpgv1.Backup) bool { return b.Status.Phase == cnpgv1.BackupPhaseCompleted })
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
