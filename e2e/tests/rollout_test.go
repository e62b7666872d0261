package tests

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A rollout of the plugin ends an old replica when a new one is ready, and a new one is ready only when it leads the clients of every
// sleeping cluster.
func TestARolloutLeavesNoServiceWithoutAGateway(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	s.sleeps(c)
	s.awaitSlices(c, toSettle, "rw", "r")

	ready := s.watchReplicas(&corev1.PodList{}, func(event watch.Event) types.UID {
		if pod, is := event.Object.(*corev1.Pod); is && scenario.Ready(pod) {
			return pod.UID
		}
		return ""
	}, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.plugin().Spec.Selector.MatchLabels))
	led := s.watchReplicas(&discoveryv1.EndpointSliceList{}, func(event watch.Event) types.UID {
		if slice, is := event.Object.(*discoveryv1.EndpointSlice); is && event.Type == watch.Added {
			return types.UID(slice.Labels[gatewaySlices+"/replica"])
		}
		return ""
	}, client.InNamespace(s.namespace), client.MatchingLabels{discoveryv1.LabelManagedBy: gatewaySlices})
	d.replacePlugin()
	s.rolledOut()
	for _, replica := range s.replicas() {
		since, made := ready(replica.UID, 1), led(replica.UID, ledEach)
		if len(since) == 0 || len(made) < ledEach {
			t.Errorf("%s was ready at the revisions %v, and made slices at %v, want %d", replica.Name, since, made, ledEach)
			continue
		}
		if whole := made[ledEach-1]; whole > since[0] { // what is made again later does not matter
			t.Errorf("%s was ready at revision %d, before it made its last slice at %d", replica.Name, since[0], whole)
		}
	}
	s.answers(c)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
}

// revision returns the etcd revision of an object's last write: timestamps have only whole seconds.
func (s *story) revision(object metav1.Object) uint64 {
	s.Helper()
	revision, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	s.must(err)
	return revision
}

// watchReplicas records, until the test ends, the revisions of the watch's events for each of the plugin's replicas. The function
// returned waits until a replica has that many, and returns them.
func (s *story) watchReplicas(list client.ObjectList, of func(watch.Event) types.UID, options ...client.ListOption) func(types.UID, int) []uint64 {
	s.Helper()
	stream, err := kube.Watch(s.ctx, list, options...)
	s.must(err)
	s.Cleanup(stream.Stop)
	var mutex sync.Mutex
	noted := map[types.UID][]uint64{}
	go func() {
		for event := range stream.ResultChan() {
			if replica := of(event); replica != "" {
				mutex.Lock()
				noted[replica] = append(noted[replica], s.revision(event.Object.(metav1.Object)))
				mutex.Unlock()
			}
		}
	}()
	return func(replica types.UID, count int) []uint64 {
		s.Helper()
		for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
			mutex.Lock()
			revisions := slices.Clone(noted[replica])
			mutex.Unlock()
			if len(revisions) >= count || time.Now().After(deadline) {
				return revisions
			}
		}
	}
}
