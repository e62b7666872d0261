package tests

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// During a node maintenance with reusePVC false the operator deletes the volumes of an instance that cannot be scheduled. A
// sleeping cluster is not woken then, by any means; after the maintenance the next client wakes it, and its data is intact.
func TestMaintenanceKeepsVolumes(t *testing.T) {
	t.Parallel()
	s := begin(t)
	program := buildStatic(t, "../..", "./plugin/kubectl")
	c := s.running(kube.NewCluster(s.namespace, "maintained", 1, never))
	_, err := kube.Query(s.ctx, c, "rw", "create table kept as select 42 as answer")
	s.must(err)
	before := s.volumes(c)
	if len(before) == 0 {
		t.Fatal("the cluster has no volume claims")
	}
	s.sleeps(c)
	s.maintain(c, true)
	message, err := kube.AwaitEvent(s.ctx, c, "WakeRefused", toSettle)
	s.must(err)
	if !strings.Contains(message, "reusePVC") {
		t.Errorf("the Event says %q", message)
	}
	s.refuses(c, "sslmode=disable", "reusePVC")
	s.refuses(c, "sslmode=require", "closed the connection", "EOF detected", "unexpected eof") // depends on the phase
	command := exec.CommandContext(s.ctx, program, "wake", c.Name, "-n", s.namespace)
	if out, err := command.CombinedOutput(); err == nil || !strings.Contains(string(out), "reusePVC") {
		t.Errorf("the command: %v: %s", err, out)
	}
	s.asleep(c, "a wake may delete volumes")
	s.awaitSlices(c, toSettle, "rw", "r")

	s.maintain(c, false)
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) { // a replica refuses until it has heard of the end
		answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" sslmode=disable", "select answer from kept")
		if err != nil && strings.Contains(err.Error(), "reusePVC") && time.Now().Before(deadline) {
			continue
		}
		if err != nil || answer != "42" {
			t.Fatalf("after the maintenance the answer is %q (%v)", answer, err)
		}
		break
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if after := s.volumes(c); !maps.Equal(before, after) {
		t.Errorf("the volumes were %v and are %v", before, after)
	}

	s.sleeps(c)
	s.maintain(c, true)
	s.must(kube.Wake(s.ctx, c))
	for name := range before { // without this the rest would prove nothing
		s.must(kube.AwaitGone(s.ctx, &corev1.PersistentVolumeClaimList{}, s.namespace, name, toWake))
	}
}

// maintain starts or ends a maintenance during which no node accepts the cluster's instances.
func (s *story) maintain(c *cnpgv1.Cluster, inProgress bool) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	changed := c.DeepCopy()
	changed.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: inProgress, ReusePVC: new(bool)}
	changed.Spec.Affinity.NodeSelector = nil
	if inProgress {
		changed.Spec.Affinity.NodeSelector = map[string]string{"example.org/maintained": "elsewhere"}
	}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(c)))
}

// refuses checks that a client is refused, with one of these messages: one that is held gives up by itself, and says so.
func (s *story) refuses(c *cnpgv1.Cluster, settings string, words ...string) {
	s.Helper()
	out, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+settings, "select 1")
	if err == nil || !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) }) {
		s.Errorf("%s: answered %q, %v", settings, out, err)
	}
}

// volumes returns the UIDs of the cluster's volume claims, by name.
func (s *story) volumes(c *cnpgv1.Cluster) map[string]types.UID {
	s.Helper()
	var claims corev1.PersistentVolumeClaimList
	s.must(kube.List(s.ctx, &claims, client.InNamespace(c.Namespace), client.MatchingLabels{"cnpg.io/cluster": c.Name}))
	found := map[string]types.UID{}
	for i := range claims.Items {
		found[claims.Items[i].Name] = claims.Items[i].UID
	}
	return found
}
