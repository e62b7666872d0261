package tests

import (
	"cmp"
	"errors"
	"net"
	"slices"
	"strings"
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

// The node of a replica loses its power: the other replica detects that by itself and serves every client, and both do when the node is
// back. The kubelet of this node still runs, and reports the pod as not ready about six seconds later. The test stops the replica with
// the greater UID, because the other one then judges first, and logs that.
func TestLostNode_itsReplicaLosesItsClients(t *testing.T) {
	whole(t)
	s := disturbing(t)
	asleep, called := s.cluster("asleep", 1), s.cluster("called", 1)
	s.together(asleep, called)
	d := s.turn(asleep, called)
	s.sleepTogether(asleep, called)
	gateways := s.replicas()
	if len(gateways) < 2 {
		t.Fatalf("the plugin has %d replicas, want two", len(gateways))
	}
	lost := slices.MaxFunc(gateways, func(a, b corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	s.awaitSlicesOf(lost.UID, ledEach, asleep, called)

	restore, err := d.powerOff(lost)
	if errors.Is(err, scenario.ErrNotHere) {
		s.unseen()
	}
	s.must(err)
	off := time.Now()
	restore = sync.OnceValue(restore)
	t.Cleanup(func() { _ = restore() })
	s.awaitSlicesOf(lost.UID, 0, asleep, called)
	t.Logf("no client was led to the lost replica %.1fs after its power was off", time.Since(off).Seconds())
	s.reportedSilent(lost, off)
	s.leadsAway(called)
	begun := time.Now()
	// The operator gives up a call to the lost replica after 30 s (internal/cnpi/plugin/connection), and may have several connections there.
	answer, err := kube.QueryAs(s.ctx, called, "rw", fromAfar, "select 1")
	if err != nil || answer != "1" {
		t.Errorf("a client got %q (%v)", answer, err)
	}
	t.Logf("a client was answered after %.1fs", time.Since(begun).Seconds())

	s.must(restore())
	back := time.Now()
	s.awaitSlicesOf(lost.UID, ledEach, asleep)
	t.Logf("its clients were led to it again %.1fs after its power was back", time.Since(back).Seconds())
	s.rolledOut()
}

// powerOff takes the power of a pod's node away, as far as the pod and its connections show.
func (s *disturber) powerOff(pod corev1.Pod) (restore func() error, err error) {
	return scenario.PowerOff(s.ctx, pod.UID)
}

// reportedSilent checks that another replica has found out by itself that this one does not answer.
func (s *story) reportedSilent(lost corev1.Pod, since time.Time) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		for _, replica := range s.replicas() {
			if replica.UID == lost.UID {
				continue
			}
			log, err := kube.LogsSince(s.ctx, replica.Namespace, replica.Name, replica.Spec.Containers[0].Name, since)
			s.must(err)
			for line := range strings.Lines(log) {
				if strings.Contains(line, "a replica does not answer") && strings.Contains(line, lost.Name) {
					return
				}
			}
		}
		if time.Now().After(deadline) {
			s.Fatalf("no replica says that %s does not answer", lost.Name)
		}
	}
}

// leadsAway waits until kube-proxy leads no client of the sleeping cluster to a replica that does not answer: it chooses one at random.
func (s *story) leadsAway(c *cnpgv1.Cluster) {
	s.Helper()
	const enough = 20
	address := net.JoinHostPort(s.address(c, "rw"), "5432")
	answered := 0
	for deadline := time.Now().Add(toSettle); answered < enough; {
		if encrypts(s.ctx, address) == nil {
			answered++
			continue
		}
		if answered = 0; time.Now().After(deadline) {
			s.Fatalf("clients of %s are still led to a replica that does not answer", c.Name)
		}
	}
}

// awaitSlicesOf waits until so many slices of each of the clusters lead to the replica. One whose power is back first has to find out
// that its connections to the API server are lost.
func (s *story) awaitSlicesOf(replica types.UID, count int, clusters ...*cnpgv1.Cluster) {
	s.Helper()
	for deadline := time.Now().Add(toHealthy); ; pause(s, pollEvery) {
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
