package tests

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// between is the longest time that a cluster may be neither awake without the gateway nor asleep with it.
const between = 30 * time.Second

// announced waits until sleep has been announced, and holds the gateway's acknowledgement until release.
func (s *story) announced(c *cnpgv1.Cluster, interceptor *scenario.Interceptor) (release func()) {
	s.Helper()
	held, release := interceptor.Hold(acknowledges)
	s.annotate(c, scenario.InactivityMinutes, soon)
	s.held(held)
	return release
}

// settled checks that the cluster is soon awake without slices or asleep with them, and logs which.
func (s *story) settled(c *cnpgv1.Cluster) {
	s.Helper()
	for start := time.Now(); ; pause(s, pollEvery) {
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
		asleep, routed := scenario.HibernationOn(c), len(s.slices(c)) != 0
		if asleep == routed && c.Annotations[scenario.Announced] == "" {
			s.Logf("settled after %.1fs: asleep %t", time.Since(start).Seconds(), asleep)
			return
		}
		if time.Since(start) > between+toSettle {
			s.Fatalf("after %s: asleep %t, routed to the gateway %t, announced %q", time.Since(start), asleep, routed, c.Annotations[scenario.Announced])
		}
	}
}

// answers checks that a client that retries is served; settings are further connection settings.
func (s *story) answers(c *cnpgv1.Cluster, settings ...string) {
	s.Helper()
	var err error
	for deadline := time.Now().Add(toWake); time.Now().Before(deadline); pause(s, pollEvery) {
		var answer string
		if answer, err = kube.QueryAs(s.ctx, c, "rw", oneOfMany+" "+strings.Join(settings, " "), "select 1"); err == nil && answer == "1" {
			return
		}
	}
	s.Fatalf("no answer: %v", err)
}

// A sidecar that dies during the handover leaves a working cluster: the next worker removes the announcement, the gateway
// withdraws, and the next attempt succeeds.
func TestSidecarDiesWhileItHandsOver(t *testing.T) {
	t.Parallel()
	s := begin(t)
	interceptor := s.intercept() // the API server learns of it while the cluster is made
	c := s.running(kube.NewCluster(s.namespace, "broken-off", 1, never))
	pod := s.instances(c)[0]
	processes := processesOf(pod, "worker")
	if len(processes) == 0 {
		s.unseen()
	}
	release := s.announced(c, interceptor)
	defer release()
	for _, process := range processes {
		_ = syscall.Kill(process, syscall.SIGKILL)
	}
	s.annotate(c, scenario.InactivityMinutes, never) // otherwise the next worker would resume the handover
	release()
	_, err := kube.AwaitCluster(s.ctx, c, "without an announcement", toSettle, func(c *cnpgv1.Cluster) bool { return c.Annotations[scenario.Announced] == "" })
	s.must(err)
	s.awaitSlices(c, toSettle)
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.fallsAsleep(c, "asleep after all")
	s.annotate(c, scenario.InactivityMinutes, never)
	s.settled(c)
	s.answers(c)
}

// All replicas of the gateway die at once, before the acknowledgement and after hibernation: the cluster stays awake, or sleeps
// and is woken by the new replicas.
func TestGatewaysDieInTheHandover(t *testing.T) {
	whole(t)
	s := disturbing(t)
	interceptor := s.intercept() // the API server learns of it while the cluster is made
	c := s.running(kube.NewCluster(s.namespace, "deserted", 1, never))
	d := s.turn(c)
	release := s.announced(c, interceptor)
	d.killPlugin()
	release()
	s.settled(c)
	_, err := kube.AwaitCluster(s.ctx, c, "asleep after all", toSleep, scenario.HibernationOn)
	s.must(err)
	d.killPlugin()
	// The operator cannot go on without the plugin and may be too late, so that hibernation is withdrawn once. Until the end the instance
	// may still answer.
	_, err = kube.AwaitCluster(s.ctx, c, "hibernated", toSleep+toHibernate, scenario.Hibernated)
	s.must(err)
	s.annotate(c, scenario.InactivityMinutes, never)
	s.answers(c)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
}

// killPlugin deletes every pod of the plugin without a grace period.
func (s *disturber) killPlugin() {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels(s.plugin().Spec.Selector.MatchLabels)))
	zero := int64(0)
	for i := range pods.Items {
		s.must(client.IgnoreNotFound(kube.Delete(s.ctx, &pods.Items[i], &client.DeleteOptions{GracePeriodSeconds: &zero})))
	}
}

// endPlugin deletes the pods of the plugin one after the other, with their grace period.
func (s *disturber) endPlugin() {
	s.Helper()
	for _, pod := range s.replicas() {
		s.must(client.IgnoreNotFound(kube.Delete(s.ctx, &pod)))
		s.rolledOut()
	}
}

// Clusters share a user and a password while the gateways restart repeatedly: no client reaches another cluster's data. RESTARTS is how
// often.
func TestTenantsStayApart(t *testing.T) {
	whole(t)
	const tenants = 4
	rounds := repeats(t, "RESTARTS", 2)
	s := disturbing(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "shared"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{"username": "app", "password": "the-same-everywhere"},
	}
	s.must(kube.Create(s.ctx, secret))
	var clusters []*cnpgv1.Cluster
	for i := range tenants {
		c := kube.NewCluster(s.namespace, fmt.Sprintf("tenant-%d", i), 1, never)
		c.Spec.Bootstrap = &cnpgv1.BootstrapConfiguration{InitDB: &cnpgv1.BootstrapInitDB{
			Database: "app", Owner: "app", Secret: &cnpgv1.LocalObjectReference{Name: secret.Name},
			PostInitApplicationSQL: []string{"create table me as select '" + c.Name + "'::text as name", "grant select on me to app"},
		}}
		s.starts(c)
		clusters = append(clusters, c)
	}
	s.must(kube.StartClientPod(s.ctx, clusters[0]))
	d := s.turn(clusters...)
	for round := range rounds {
		for _, c := range clusters {
			s.annotate(c, scenario.InactivityMinutes, soon)
		}
		for _, c := range clusters {
			s.fallsAsleep(c, "asleep")
			s.annotate(c, scenario.InactivityMinutes, never)
		}
		if round%3 == 2 {
			d.endPlugin()
		} else {
			d.killPlugin()
		}
		var group sync.WaitGroup
		for _, c := range clusters {
			group.Go(func() {
				out, err := kube.Client(s.ctx, s.namespace, fmt.Sprintf(`export PGPASSWORD=the-same-everywhere
until psql -XAtq "host=%s-rw user=app dbname=app %s" -c 'select name from me' 2>/dev/null; do sleep 0.1; done`, c.Name, oneOfMany))
				if got := strings.TrimSpace(out); err != nil || got != c.Name {
					t.Errorf("through %s-rw the client reached %q (%v)", c.Name, got, err)
				}
			})
		}
		group.Wait()
		for _, c := range clusters {
			s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		}
	}
}

// Where pg_hba.conf distinguishes addresses, a client wakes the cluster and must reconnect: it gets in by its own address or
// not at all.
func TestRulesByAddress(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "addressed", 1, never))
	before := c.DeepCopy()
	c.Spec.PostgresConfiguration.PgHBA = []string{"host app app " + s.client().Status.PodIP + "/32 scram-sha-256"}
	s.must(kube.Patch(s.ctx, c, client.MergeFrom(before)))
	s.sleeps(c)
	s.connectsAgain(c)

	c.Spec.PostgresConfiguration.PgHBA = []string{"host app app 0.0.0.0/1 reject", "host app app 128.0.0.0/1 reject"}
	other := kube.NewCluster(s.namespace, "barred", 1, never)
	s.starts(other)
	barred := other.DeepCopy()
	barred.Spec.PostgresConfiguration.PgHBA = c.Spec.PostgresConfiguration.PgHBA
	s.must(kube.Patch(s.ctx, barred, client.MergeFrom(other)))
	refused := func(when string) {
		s.Helper()
		for deadline := time.Now().Add(toHealthy); ; pause(s, pollEvery) {
			out, err := kube.QueryAs(s.ctx, other, "rw", fromAfar, "select 1")
			if err != nil && strings.Contains(err.Error(), "pg_hba.conf rejects") {
				return
			}
			if time.Now().After(deadline) {
				s.Fatalf("%s: the client that the rules bar got %q (%v)", when, out, err)
			}
		}
	}
	refused("awake")
	s.sleeps(other)
	for range 3 {
		if out, err := kube.QueryAs(s.ctx, other, "rw", fromAfar, "select 1"); err == nil {
			t.Fatalf("through the gateway the client that the rules bar got %q", out)
		}
	}
	refused("woken")
}

// A rule for a network that has both the client and the gateway, such as that of the pods, distinguishes neither: the client is answered.
func TestRulesByAddress_ofANetworkOfBoth(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "inside", 1, never))
	pods := netip.PrefixFrom(netip.MustParseAddr(s.client().Status.PodIP), 8).Masked()
	before := c.DeepCopy()
	c.Spec.PostgresConfiguration.PgHBA = []string{"host all all " + pods.String() + " scram-sha-256"}
	s.must(kube.Patch(s.ctx, c, client.MergeFrom(before)))
	s.sleeps(c)
	if answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" sslmode=require", "select 'passed'"); err != nil || answer != "passed" {
		t.Errorf("the client got %q (%v)", answer, err)
	}
}

// connectsAgain checks that a client that wakes the cluster is told to connect again once its Service leads to PostgreSQL only, and
// gets in then: at once, unless kube-proxy is late.
func (s *story) connectsAgain(c *cnpgv1.Cluster) {
	s.Helper()
	const ask = "select 'passed'"
	if out, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" sslmode=disable", ask); err == nil || !strings.Contains(err.Error(), "connect again") {
		s.Fatalf("the client got %q (%v), want to be told to connect again", out, err)
	}
	if led := s.slices(c)[c.Name+"-rw"]; led != 0 || !slices.ContainsFunc(s.instances(c), func(p corev1.Pod) bool { return scenario.Ready(&p) }) {
		s.Errorf("the client is told to connect again while %d slices lead to the gateway, or no instance is ready", led)
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	if scenario.HibernationOn(c) {
		s.Error("the client did not wake the cluster")
	}
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		out, err := kube.QueryAs(s.ctx, c, "rw", oneOfMany+" sslmode=disable", ask)
		if err == nil && out == "passed" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("the client connected again, as it was told, and got %q (%v)", out, err)
		}
	}
}
