package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// Silent connections to one sleeping cluster take all slots for new connections. Clients of other clusters are answered
// nevertheless, even from the same address.
func TestSilentConnectionsKeepNoOtherClusterAsleep(t *testing.T) {
	whole(t)
	t.Parallel()
	const clients, fewConnections = 10, 100
	s := begin(t)
	silent := make([]*cnpgv1.Cluster, 0, 4)
	for i := range cap(silent) {
		silent = append(silent, kube.NewCluster(s.namespace, fmt.Sprintf("silent-%d", i), 1, never))
	}
	c := kube.NewCluster(s.namespace, "wanted", 1, never)
	all := append([]*cnpgv1.Cluster{c}, silent...)
	s.together(all...)
	s.sleepTogether(all...)
	var floods strings.Builder
	for _, cluster := range silent { // reopened as soon as the gateway has closed them
		fmt.Fprintf(&floods, "flood %s & ", s.address(cluster, "rw"))
	}
	flooding.Lock()
	defer flooding.Unlock()
	before := s.gateways()
	ended := make(chan error, 1)
	go func() {
		_, err := kube.Client(s.ctx, s.namespace, `exec 2>/dev/null; ulimit -n 4096
flood() { for round in {1..12}; do for i in {1..1500}; do exec {f}<>/dev/tcp/$1/5432 && all+=($f); done
sleep 1; for f in "${all[@]}"; do exec {f}>&-; done; all=(); done; }
`+floods.String()+"wait; true")
		ended <- err
	}()
	s.counted(before, 1000, crowded)
	answers := make(chan error, clients)
	for range clients {
		go func() {
			answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 'answered'")
			if err == nil && answer != "answered" {
				err = fmt.Errorf("the answer is %q", answer)
			}
			answers <- err
		}()
	}
	for range clients {
		if err := <-answers; err != nil {
			t.Errorf("a client: %v", err)
		}
	}
	s.must(<-ended)
	for deadline := time.Now().Add(toSettle); s.gateways()[opened] > before[opened]+fewConnections; pause(s, pollEvery) { // others use them, too
		if time.Now().After(deadline) {
			t.Fatalf("%.0f descriptors are open, %.0f were before", s.gateways()[opened], before[opened])
		}
	}
	for _, cluster := range silent {
		s.asleep(cluster, "nobody was a client")
	}
}

// sleepTogether lets the clusters fall asleep at once, and keeps them from doing so again.
func (s *story) sleepTogether(clusters ...*cnpgv1.Cluster) {
	s.Helper()
	for _, c := range clusters {
		s.annotate(c, scenario.InactivityMinutes, soon)
	}
	for _, c := range clusters {
		s.fallsAsleep(c, "asleep")
		s.annotate(c, scenario.InactivityMinutes, never)
	}
	for _, c := range clusters {
		s.awaitSlices(c, toSettle, "rw", "r")
	}
}

// A client that wakes a cluster and leaves before it is served keeps it awake for a minute; one that was served, for the
// threshold.
func TestAWakeThatNobodyUsedEndsAfterAMinute(t *testing.T) {
	t.Parallel()
	s := begin(t)
	unused, used := kube.NewCluster(s.namespace, "unused", 1, never), kube.NewCluster(s.namespace, "used", 1, never)
	s.together(unused, used)
	s.sleepTogether(unused, used)

	_, err := kube.QueryAs(s.ctx, used, "rw", fromAfar, "select 1")
	s.must(err)
	var healthy time.Time
	s.until(func() bool {
		left := make(chan error, 1)
		go func() { // leaves when it is told to
			_, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf(`rm -f /tmp/leave; exec 3<>/dev/tcp/%s/5432
printf '\x00\x00\x00\x12\x00\x03\x00\x00user\x00app\x00\x00' >&3; until [ -e /tmp/leave ]; do sleep 0.1; done`, s.address(unused, "rw")))
			left <- err
		}()
		_, err = kube.AwaitCluster(s.ctx, unused, "woken", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
		s.must(err)
		_, err = kube.Client(s.ctx, s.namespace, "touch /tmp/leave")
		s.must(err)
		s.must(<-left)
		s.must(kube.AwaitHealthy(s.ctx, unused, toHealthy))
		healthy = time.Now()
		return s.sleepsUnused(unused)
	}, everythingHeard)
	if reason := unused.Annotations[scenario.AsleepReason]; !strings.HasPrefix(reason, "unused since") {
		t.Errorf("the reason is %q", reason)
	}
	s.awaitReport(used, used.Status.CurrentPrimary, "that it sleeps after the threshold only", func(r report) bool {
		return r.Known && !r.Unused && r.SampledAt.After(healthy.Add(time.Minute)) && r.Due.After(r.IdleSince.Add(time.Hour))
	})
}

// everythingHeard is a precondition: after a missed notification, the sidecar cannot tell whether a wake was used.
const everythingHeard = "the sidecar has missed no notification after the wake"

// sleepsUnused waits until a woken cluster is put to sleep, and reports whether that was because nobody had used it. Where notifications
// may have been missed, because the server did not answer for seconds, nobody can tell, and the cluster is put to sleep again.
func (s *story) sleepsUnused(c *cnpgv1.Cluster) bool {
	s.Helper()
	for deadline := time.Now().Add(toHealthy + time.Minute + toSleep); ; pause(s, time.Second) {
		if s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c)); scenario.HibernationOn(c) {
			return true
		}
		log, err := kube.Logs(s.ctx, c.Namespace, c.Status.CurrentPrimary, scenario.SidecarContainer)
		switch used := strings.Contains(log, "the wake counts as used"); {
		case err == nil && used && strings.Contains(log, "notifications may have been missed"):
			s.sleepTogether(c)
			return false
		case time.Now().After(deadline), err == nil && used:
			s.Fatalf("the cluster is not put to sleep although nobody has used it: %v\n%s", err, log)
		}
	}
}

// A primary that was used and whose pod is deleted leaves nobody who knows of the use: the threshold applies, and no client waits.
func TestAPrimaryThatIsReplacedLeavesNoProofThatNobodyUsedIt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(2, asleep)
	_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	woken := time.Now()
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	first := c.Status.CurrentPrimary
	doomed := &corev1.Pod{}
	doomed.Namespace, doomed.Name = c.Namespace, first
	s.must(kube.Delete(s.ctx, doomed, client.GracePeriodSeconds(0)))
	_, err = kube.AwaitCluster(s.ctx, c, "failed over", toHealthy, func(c *cnpgv1.Cluster) bool { return c.Status.CurrentPrimary != first })
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	t.Logf("healthy %.1fs after the wake", time.Since(woken).Seconds())
	healthy := time.Now()
	s.awaitReport(c, c.Status.CurrentPrimary, "that it sleeps after the threshold only", func(r report) bool {
		return r.Known && !r.Unused && r.SampledAt.After(healthy) && r.Due.After(r.IdleSince.Add(time.Hour))
	})
}

// Monitoring that stays connected, is ignored by its user and comes back wakes the cluster, which then sleeps again after a minute, and
// an Event names what would keep it from doing so. It waits before it may wake the cluster again.
func TestMonitoringThatComesBackDoesNotKeepWakingIt(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, asleep)
	s.annotate(c, scenario.Ignore, "application=monitor")
	monitored, stop := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	go func() { // it comes back two seconds after its session is ended, when the nodes know that the Service leads to the gateway
		defer close(ended)
		for monitored.Err() == nil {
			if session, err := kube.OpenAs(monitored, c, "rw", "application_name=monitor "+fromAfar); err == nil {
				for err == nil && monitored.Err() == nil {
					err = session.Run("select pg_sleep(1)")
				}
				session.Close()
			}
			select {
			case <-monitored.Done():
			case <-time.After(2 * time.Second):
			}
		}
	}()
	defer func() {
		stop()
		s.wake(c)
		<-ended
	}()
	var woken time.Time
	s.until(func() bool {
		_, err := kube.AwaitCluster(s.ctx, c, "woken by the monitoring", toHealthy, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
		s.must(err)
		woken = time.Now()
		return s.sleepsUnused(c)
	}, everythingHeard)
	up := time.Since(woken)
	if reason := c.Annotations[scenario.AsleepReason]; !strings.HasPrefix(reason, "unused since") || !strings.HasSuffix(reason, "by a client whose session is ignored") {
		t.Errorf("the reason is %q", reason)
	}
	message, err := kube.AwaitEvent(s.ctx, c, "WokenByIgnored", toSettle)
	s.must(err)
	if !strings.Contains(message, "client=") {
		t.Errorf("the Event does not name the item: %s", message)
	}
	s.hibernated(c)
	_, err = kube.AwaitEventSaying(s.ctx, c, "WakeQueued", "only ignored sessions did", toSettle)
	s.must(err)
	s.asleep(c, fmt.Sprintf("the monitoring is back, and the cluster was up for %.0fs", up.Seconds()))
}
