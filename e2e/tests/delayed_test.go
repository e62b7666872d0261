package tests

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A wake that cannot proceed reports what it waits for, and its client is held until it can.
func TestWakeSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "delayed", 1, never))
	s.sleeps(c)
	place := func(selector map[string]string) {
		s.Helper()
		before := c.DeepCopy()
		c.Spec.Affinity.NodeSelector = selector
		s.must(kube.Patch(s.ctx, c, client.MergeFrom(before)))
	}
	place(map[string]string{"example.org/nowhere": "true"})
	answered := make(chan error, 1)
	go func() {
		_, err := kube.QueryAs(s.ctx, c, "rw", "connect_timeout=240", "select 1")
		answered <- err
	}()
	message, err := kube.AwaitEvent(s.ctx, c, "WakeDelayed", 2*time.Minute)
	s.must(err)
	t.Log(message)
	if !strings.Contains(message, "pod "+c.Name+"-1 cannot be scheduled") {
		t.Errorf("the Event says %q", message)
	}
	place(nil)
	s.must(kube.Delete(s.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-1"}}))
	select {
	case err := <-answered:
		s.must(err)
	case <-time.After(2 * toWake):
		t.Error("the client is not answered")
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if scenario.SwitchedOn(c) {
		t.Error("answered, but the switch is on")
	}
}
