package scenario

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// A wait begins with what a list returns, whatever the watch begins with, and goes on with what changes since then.
func TestAwait_beginsWithTheList(t *testing.T) {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "here", "one"
	byName := func(object client.Object) []string { return []string{object.GetName()} }
	k := &Kubernetes{WithWatch: fake.NewClientBuilder().WithObjects(pod).WithIndex(pod, "metadata.name", byName).Build()}
	is := func(phase corev1.PodPhase) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool { return p.Status.Phase == phase }
	}
	if _, err := Await(t.Context(), k, pod, "there", time.Minute, is("")); err != nil {
		t.Error(err)
	}
	watched := make(chan struct{})
	k.WithWatch = interceptor.NewClient(k.WithWatch, interceptor.Funcs{
		Watch: func(ctx context.Context, of client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			defer close(watched)
			return of.Watch(ctx, list, options...)
		},
	})
	seen, ended := pod.DeepCopy(), make(chan error, 1)
	go func() {
		_, err := Await(t.Context(), k, seen, "running", time.Minute, is(corev1.PodRunning))
		ended <- err
	}()
	<-watched
	pod.Status.Phase = corev1.PodRunning
	if err := k.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || seen.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod is %q (%v)", seen.Status.Phase, err)
	}
}
