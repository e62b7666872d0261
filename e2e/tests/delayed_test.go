package tests

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A wake that cannot proceed reports what it waits for, and its client is held until it can.
func TestWakeSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	place := func(selector map[string]string) {
		s.Helper()
		before := c.DeepCopy()
		c.Spec.Affinity.NodeSelector = selector
		s.must(kube.Patch(s.ctx, c, client.MergeFrom(before)))
	}
	place(map[string]string{"example.org/nowhere": "true"})
	answered := make(chan error, 1)
	go func() {
		_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
		answered <- err
	}()
	event, err := kube.AwaitEventSaying(s.ctx, c, "WakeDelayed", "pod "+c.Name+"-1 cannot be scheduled", toHealthy)
	s.must(err)
	t.Log(event.Message)
	place(nil)
	for waiting := true; waiting; {
		s.deleteUnplaced(c.Name + "-1") // the operator may make it like that again before it learns of the change
		select {
		case err := <-answered:
			s.must(err)
			waiting = false
		case <-time.After(pollEvery):
		}
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if scenario.HibernationOn(c) {
		t.Error("answered, but hibernation is on")
	}
}

// deleteUnplaced deletes an instance's pod if there is one that may only run on certain nodes.
func (s *story) deleteUnplaced(name string) {
	s.Helper()
	var pod corev1.Pod
	err := kube.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, &pod)
	if apierrors.IsNotFound(err) {
		return
	}
	s.must(err)
	if len(pod.Spec.NodeSelector) != 0 && pod.DeletionTimestamp.IsZero() {
		s.must(client.IgnoreNotFound(kube.Delete(s.ctx, &pod)))
	}
}
