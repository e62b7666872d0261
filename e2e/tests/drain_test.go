package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A pool that was opened while its cluster woke stays on the gateway. A rollout of the plugin ends the replica, and the replica
// waits DRAIN_TIMEOUT for its sessions. This test replaces the plugin's pods and so does not run beside others.
func TestRollout_cutsNoSession(t *testing.T) {
	const clients, length = 4, 18 // seconds, less than the 20 of DRAIN_TIMEOUT
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "pooled", 1, never))
	pgbench := fmt.Sprintf("PGPASSWORD=%s PGSSLMODE=require exec $(ls -d /usr/lib/postgresql/*/bin | tail -1)/pgbench -h %s-rw -U app", s.password(c), c.Name)
	_, err := kube.Client(s.ctx, s.namespace, pgbench+" -i -q app 2>&1")
	s.must(err)
	s.sleeps(c)

	type result struct {
		out   string
		err   error
		ended time.Time
	}
	ended := make(chan result, 1)
	go func() {
		out, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf("%s -n -c %d -T %d app 2>&1", pgbench, clients, length))
		ended <- result{out, err, time.Now()}
	}()
	gateways := s.replicas()
	var addresses []string
	for i := range gateways {
		addresses = append(addresses, "'"+gateways[i].Status.PodIP+"'")
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"example.org/restarted":"` + time.Now().Format(time.RFC3339Nano) + `"}}}}}`)
	s.must(kube.Patch(s.ctx, s.plugin(), client.RawPatch(types.MergePatchType, patch)))
	var stopped []time.Time
	for i := range gateways {
		at, err := kube.AwaitPod(s.ctx, &gateways[i], "asked to stop", time.Minute, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
		s.must(err)
		stopped = append(stopped, at)
	}
	s.asSuperuser(c, "app", fmt.Sprintf(
		"do $$ begin assert (select count(*) from pg_stat_activity where client_addr in (%s)) = %d, 'the sessions do not pass through the replicas'; end $$",
		strings.Join(addresses, ", "), clients))
	got := <-ended
	if got.err != nil || !strings.Contains(got.out, "number of failed transactions: 0 ") || strings.Contains(got.out, "aborted") {
		t.Errorf("pgbench: %v\n%s", got.err, got.out)
	}
	for i, at := range stopped {
		t.Logf("%s was asked to stop %.1fs before the sessions ended", gateways[i].Name, got.ended.Sub(at).Seconds())
	}
	s.rolledOut()
}
