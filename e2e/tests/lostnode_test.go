package tests

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toLoseReplica bounds how long clients are led to a replica whose node has lost its power.
const toLoseReplica = 15 * time.Second

// The node of a replica loses its power: the other replica finds out by itself and leads every client, and when the node is back
// both do. The kubelet of this node lives, and sees that the pod is not ready about six seconds later; of the two replicas the one is
// lost that the other judges first, so that the kubelet has no part in it. This test stops one of the plugin's pods and so does
// not run beside others.
func TestLostNode_itsReplicaLosesItsClients(t *testing.T) {
	s := begin(t)
	asleep, called := s.cluster("asleep", 1), s.cluster("called", 1)
	s.together(asleep, called)
	s.sleepTogether(asleep, called)
	gateways := s.replicas()
	if len(gateways) < 2 {
		t.Fatalf("the plugin has %d replicas, want two", len(gateways))
	}
	lost := slices.MaxFunc(gateways, func(a, b corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	s.awaitSlicesOf(lost.UID, 2, toSettle, asleep, called)

	restore, err := scenario.PowerOff(s.ctx, lost.UID)
	if errors.Is(err, scenario.ErrNotHere) {
		t.Skip("the processes of the node cannot be seen from here")
	}
	s.must(err)
	off := time.Now()
	restore = sync.OnceValue(restore)
	t.Cleanup(func() { _ = restore() })
	s.awaitSlicesOf(lost.UID, 0, toLoseReplica, asleep, called)
	t.Logf("no client was led to the lost replica %.1fs after its power was off", time.Since(off).Seconds())
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(&lost), &lost))
	if !scenario.Ready(&lost) {
		t.Error("the kubelet was quicker")
	}
	pause(s, time.Second) // until kube-proxy knows
	begun := time.Now()
	// The operator gives up a call to the lost replica after 30 s (internal/cnpi/plugin/connection), and may have several connections there.
	answer, err := kube.QueryAs(s.ctx, called, "rw", "connect_timeout=150", "select 1")
	if err != nil || answer != "1" {
		t.Errorf("a client got %q (%v)", answer, err)
	}
	t.Logf("a client was answered after %.1fs", time.Since(begun).Seconds())

	s.must(restore())
	back := time.Now()
	s.awaitSlicesOf(lost.UID, 2, time.Minute, asleep)
	t.Logf("its clients were led to it again %.1fs after its power was back", time.Since(back).Seconds())
	s.rolledOut()
}

// awaitSlicesOf waits until so many slices of each of the clusters lead to the replica.
func (s *story) awaitSlicesOf(replica types.UID, count int, within time.Duration, clusters ...*cnpgv1.Cluster) {
	s.Helper()
	for deadline := time.Now().Add(within); ; pause(s, 50*time.Millisecond) {
		var list discoveryv1.EndpointSliceList
		s.must(kube.List(s.ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels{gatewaySlices + "/replica": string(replica)}))
		found := map[string]int{}
		for i := range list.Items {
			found[list.Items[i].Labels["cnpg.io/cluster"]]++
		}
		if !slices.ContainsFunc(clusters, func(c *cnpgv1.Cluster) bool { return found[c.Name] != count }) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("slices that lead to replica %s: %v, want %d of each cluster", replica, found, count)
		}
	}
}
