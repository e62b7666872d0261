package tests

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// While kube-proxy stands still no Service leads elsewhere. A cluster that is awake does not fall asleep, because its clients would not find
// the gateway. One that sleeps is woken: the client that does it is answered, and each that comes before kube-proxy goes on is answered or
// refused at once.
func TestKubeProxyStops(t *testing.T) {
	whole(t)
	s := alone(t)
	c := s.borrow(1, awake)
	proxy := s.component("kube-proxy")
	goesOn := s.stops(proxy)
	s.annotate(c, scenario.InactivityMinutes, soon)
	_, err := kube.AwaitEventSaying(s.ctx, c, "SleepBlocked", "gateway_unavailable", toSleep) // the end of an attempt
	s.must(err)
	if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); scenario.HibernationOn(c) {
		t.Error("put to sleep while no Service could lead to the gateway")
	}
	if _, err := kube.Query(s.ctx, c, "rw", "select 1"); err != nil {
		t.Error(err)
	}
	goesOn()
	s.sleeps(c)

	s.leadsAway(c) // kube-proxy knows that PostgreSQL is gone
	goesOn = s.stops(proxy)
	session := s.open(c, "rw")
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
	for range 5 { // the gateway's port is closed meanwhile
		began := time.Now()
		out, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
		t.Logf("after %.1fs: %q, %v", time.Since(began).Seconds(), out, err)
		if err != nil && !strings.Contains(err.Error(), "Connection refused") {
			t.Errorf("a client was neither answered nor refused: %v", err)
		}
		pause(s.story, time.Second)
	}
	s.must(session.Run("select 1"))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "active", "a session through the gateway")
	goesOn()
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
	from, to := session.Close()
	s.asleepOnTime(c, from, to, threshold)
}
