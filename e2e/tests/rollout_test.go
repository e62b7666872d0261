package tests

import (
	"context"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A rollout of the plugin ends an old replica when a new one is ready, and a new one is ready only when it leads the clients of every
// sleeping cluster. This test replaces the plugin's pods and so does not run beside others.
func TestARolloutLeavesNoServiceWithoutAGateway(t *testing.T) {
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "asleep", 1, never))
	s.sleeps(c)
	s.awaitSlices(c, toSettle, "rw", "r")

	ready := s.watchReady()
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"example.org/restarted":"` + time.Now().Format(time.RFC3339) + `"}}}}}`)
	s.must(kube.Patch(s.ctx, s.plugin(), client.RawPatch(types.MergePatchType, patch)))
	s.rolledOut()
	since := ready()
	for _, replica := range s.replicas() {
		var made discoveryv1.EndpointSliceList
		s.must(kube.List(s.ctx, &made, client.InNamespace(s.namespace), client.MatchingLabels{"scale-to-zero.cnpg-i.io/replica": string(replica.UID)}))
		if len(made.Items) != 2 || since[replica.UID] == 0 {
			t.Errorf("%s, ready since revision %d, has %d slices, want 2", replica.Name, since[replica.UID], len(made.Items))
		}
		for i := range made.Items {
			if slice := &made.Items[i]; s.revision(slice) > since[replica.UID] {
				t.Errorf("%s was ready at revision %d, and its slice %s made at %d", replica.Name, since[replica.UID], slice.Name, s.revision(slice))
			}
		}
	}
	s.answers(c)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}

// revision is that of etcd at which an object was written last: clocks tell only whole seconds.
func (s *story) revision(object metav1.Object) uint64 {
	s.Helper()
	revision, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	s.must(err)
	return revision
}

// watchReady notes, until the function returned is called, at which revision each of the plugin's pods became ready.
func (s *story) watchReady() func() map[types.UID]uint64 {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	stream, err := kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.plugin().Spec.Selector.MatchLabels))
	s.must(err)
	seen := make(chan map[types.UID]uint64, 1)
	go func() {
		since := map[types.UID]uint64{}
		defer func() { seen <- since }()
		for event := range stream.ResultChan() {
			if pod, is := event.Object.(*corev1.Pod); is && since[pod.UID] == 0 && scenario.Ready(pod) {
				since[pod.UID] = s.revision(pod)
			}
		}
	}()
	return func() map[types.UID]uint64 { stream.Stop(); cancel(); return <-seen }
}
