package tests

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// allowed is how late kube-proxy may be: HANDOVER_WAIT and the preStop hook allow for it. behind is for how long kube-proxy of the
	// other node does not learn of a change.
	allowed = 2 * time.Second
	behind  = allowed / 4
	// visitsFor is for how long visitors then begin sessions.
	visitsFor = 4 * time.Second
)

// kube-proxy of a node is late when a cluster dozes or hibernates, and when it is awake again: nobody on that node is refused,
// although the Services still lead to what is about to go.
func TestNodes_aLateProxyRefusesNobody(t *testing.T) {
	whole(t)
	s := alone(t)
	here, there := s.twoNodes()
	program := buildStatic(t, "..", "./cmd/burst")
	dozing, hibernated := s.cluster("dozing", 1), s.cluster("hibernated", 1)
	dozing.Annotations[scenario.DozeMinutes] = dozesLater
	s.startsOn(here, dozing)
	s.startsOn(here, hibernated)
	s.clientOn(there, dozing)
	s.must(kube.AwaitReachable(s.ctx, hibernated, "rw", toSettle))
	s.must(kube.PutBurst(s.ctx, s.namespace, program))

	order, pod := s.burst(dozing), s.instances(dozing)[0]
	s.until(func() bool {
		s.annotate(dozing, scenario.DozeMinutes, dozeMinutes)
		begin := s.visitors(order)
		s.acknowledged(dozing)
		s.late(func() {
			_, err := scenario.Await(s.ctx, kube, &pod, "not ready", toDoze, func(p *corev1.Pod) bool { return !scenario.Ready(p) })
			s.must(err)
		})
		_, err := kube.AwaitCluster(s.ctx, dozing, "fenced", toDoze, fenced) // a client served before that prevents the doze
		s.must(err)
		ended := begin()
		s.annotate(dozing, scenario.DozeMinutes, dozesLater)
		awake, late := s.lateAfterTheWake(dozing, order)
		return s.keptUp(ended(), awake) && !late
	}, "the machine kept up")
	if now := s.instances(dozing)[0]; now.UID != pod.UID {
		t.Error("the pod was replaced")
	}

	order = s.burst(hibernated)
	s.until(func() bool {
		pod, begin := s.instances(hibernated)[0], s.visitors(order)
		s.annotate(hibernated, scenario.InactivityMinutes, soon)
		s.acknowledged(hibernated)
		s.late(func() {
			_, err := scenario.Await(s.ctx, kube, &pod, "being deleted", toSleep, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
			s.must(err)
		})
		ended := begin()
		s.annotate(hibernated, scenario.InactivityMinutes, never)
		awake, lateAwake := s.lateAfterTheWake(hibernated, order)
		report := ended()
		late := refusedLater(&report, pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds)*time.Second))
		return s.keptUp(report, awake) && !late && !lateAwake && report.Quickest < allowed
	}, "the machine kept up, and PostgreSQL served a client after its pod was deleted")
}

// refusedLater removes from the report the clients that were refused more than the allowed time after since, and reports whether there
// were any: kube-proxy was late, and still routed them to an endpoint that was gone.
func refusedLater(report *scenario.BurstReport, since time.Time) bool {
	later := func(f scenario.BurstFailure) bool {
		return f.Phase == "connect" && f.Began.After(since.Add(allowed)) && strings.Contains(f.Text, "connection refused")
	}
	found := slices.ContainsFunc(report.Failures, later)
	report.Failures = slices.DeleteFunc(report.Failures, later)
	return found
}

// keptUp reports whether the sessions with an awake cluster were fast enough, and only then reports failures: on a slower machine
// kube-proxy is also later than the two seconds, and a failed client shows nothing.
func (s *story) keptUp(before, awake scenario.BurstReport) bool {
	s.Helper()
	const longest = 5 * time.Second
	failures := append(before.Failures, awake.Failures...)
	s.Logf("%d sessions took up to %.2fs and then, awake, %.2fs; %d failed", before.Sessions+awake.Sessions,
		before.Slowest.Seconds(), awake.Slowest.Seconds(), len(failures))
	if awake.Slowest > longest {
		return false
	}
	for _, failure := range failures {
		s.Error(failure)
	}
	return true
}

// lateAfterTheWake delays the other node's kube-proxy when the gateway removes its first EndpointSlices of the woken cluster. It returns
// what happened to the clients that connected then, and whether kube-proxy was later than allowed for some.
func (s *disturber) lateAfterTheWake(c *cnpgv1.Cluster, order scenario.Burst) (report scenario.BurstReport, late bool) {
	s.Helper()
	begin := s.visitors(order)
	_, err := kube.AwaitCluster(s.ctx, c, "woken", toWake, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) && !fenced(c) })
	s.must(err)
	led := s.slices(c)
	var left time.Time
	s.late(func() {
		for maps.Equal(s.slices(c), led) {
			pause(s.story, pollEvery/4)
		}
		left = time.Now()
	})
	report = begin()()
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	return report, refusedLater(&report, left)
}

// late stops kube-proxy of the other node until a moment after something has happened.
func (s *disturber) late(happens func()) {
	s.Helper()
	layout, err := cluster.DefaultLayout("..")
	s.must(err)
	resume, err := layout.HoldSecondProxy()
	s.must(err)
	s.Cleanup(func() { _ = resume() })
	happens()
	time.AfterFunc(behind, func() { _ = resume() })
}

// visitors start clients that connect, each to a random Service, from when begin is called. The function that it returns waits until
// all have been served or refused.
func (s *story) visitors(order scenario.Burst) (begin func() (ended func() scenario.BurstReport)) {
	s.Helper()
	const clients = 3
	begun, reports, failures := make(chan struct{}), make([]scenario.BurstReport, clients), make([]error, clients)
	order.Lasts, order.Begin = visitsFor, begun
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() { reports[i], failures[i] = kube.Burst(s.ctx, s.namespace, order) })
	}
	return func() func() scenario.BurstReport {
		close(begun)
		return func() scenario.BurstReport {
			s.Helper()
			group.Wait()
			s.must(errors.Join(failures...))
			all := scenario.BurstReport{Quickest: order.Patience}
			for _, report := range reports {
				all.Sessions += report.Sessions
				all.Failures = append(all.Failures, report.Failures...)
				all.Slowest = max(all.Slowest, report.Slowest)
				if report.Quickest != 0 {
					all.Quickest = min(all.Quickest, report.Quickest)
				}
			}
			return all
		}
	}
}

// acknowledged waits until the gateway has acknowledged the announcement of a sleep or doze.
func (s *story) acknowledged(c *cnpgv1.Cluster) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "acknowledged", toDoze, func(c *cnpgv1.Cluster) bool {
		return c.Annotations[scenario.Announced] != "" && c.Annotations[scenario.GatewayReady] == c.Annotations[scenario.Announced]
	})
	s.must(err)
}

// The node ports of a Service whose externalTrafficPolicy is Cluster lead to the cluster on each node, awake and asleep, and wake it. One
// whose policy is Local leads there on the node of the instance while the cluster is awake, and wakes nothing.
func TestNodes_nodePorts(t *testing.T) {
	whole(t)
	s := alone(t)
	here, there := s.twoNodes()
	c := s.cluster("exposed", 1)
	s.startsOn(here, c)
	everywhere := s.expose(c, "everywhere", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeNodePort })
	local := s.expose(c, "local", func(service *corev1.Service) {
		service.Annotations = map[string]string{"xata.io/scale-to-zero-unroutable": "accept"}
		service.Spec.Type, service.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
	})
	beside := map[string]string{here: there, there: here} // a node treats its own connections, and those of pods, as if every policy were Cluster
	for _, node := range beside {
		s.must(kube.StartClientPod(s.ctx, c, func(pod *corev1.Pod) {
			pod.Name, pod.Spec.NodeName, pod.Spec.HostNetwork = "on-"+node, node, true
		}))
	}
	through := func(service *corev1.Service, name, settings string) error {
		var node corev1.Node
		s.must(kube.Get(s.ctx, client.ObjectKey{Name: name}, &node))
		_, err := kube.Exec(s.ctx, s.namespace, "on-"+beside[name], "client", "env", "PGPASSWORD="+s.password(c), "psql", "-XAtqc", "select 1",
			fmt.Sprintf("host=%s port=%d user=app dbname=app %s", node.Status.Addresses[0].Address, service.Spec.Ports[0].NodePort, settings))
		return err
	}
	leads := func(service *corev1.Service, node string) {
		t.Helper()
		for deadline := time.Now().Add(toSettle); ; pause(s.story, pollEvery) {
			err := through(service, node, "connect_timeout=5")
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("awake, %s of %s does not lead to the cluster: %v", service.Name, node, err)
			}
		}
	}
	leadsNowhere := func(service *corev1.Service, node string) {
		t.Helper()
		if through(service, node, "connect_timeout=3") == nil {
			t.Errorf("%s of %s leads to the cluster", service.Name, node)
		}
	}
	leads(everywhere, here)
	leads(everywhere, there)
	leads(local, here)
	leadsNowhere(local, there)
	for node := range beside {
		s.sleeps(c)
		s.awaitSlices(c, toSettle, "rw", "r", "everywhere")
		leadsNowhere(local, here)
		leadsNowhere(local, there)
		s.asleep(c, "nobody connected by another Service")
		start := time.Now()
		s.must(through(everywhere, node, fromAfar))
		t.Logf("answered through %s after %.2fs", node, time.Since(start).Seconds())
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.awaitSlices(c, toSettle)
	}
}

// A drain of the node of a dozing cluster ends by itself, although the PodDisruptionBudget allows no eviction of its pod. A client that
// then connects is held until there is a node again that has its volume.
func TestNodes_aDrainEndsADoze(t *testing.T) {
	whole(t)
	s := alone(t)
	here, there := s.twoNodes()
	c := s.cluster("drained", 1)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	s.startsOn(there, c)
	s.clientOn(here, c)
	before := s.dozes(c)
	s.annotate(c, scenario.DozeMinutes, dozesLater)
	r, node := s.reads(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: there}}
	t.Cleanup(func() { s.ctx = cleanup(t); s.cordon(node, false) })

	start := time.Now()
	r.typed("kubectl drain " + there + " --ignore-daemonsets --delete-emptydir-data --timeout=5m")
	t.Logf("drained after %.1fs", time.Since(start).Seconds())
	s.hibernated(c)
	message, err := kube.AwaitEvent(s.ctx, c, "HibernationRequested", toSettle)
	s.must(err)
	if !strings.Contains(message, there+": the node is cordoned") {
		t.Errorf("the Event says %q", message)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
		answered <- err
	}()
	_, err = kube.AwaitCluster(s.ctx, c, "woken", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
	s.must(err)
	s.cordon(node, false)
	s.must(<-answered)
	s.awakeAgain(c)
	if now := s.instances(c)[0]; now.UID == before.UID {
		t.Error("the drain left the pod")
	}
}

// A node is lost, with a replica of the plugin: a client on the other node wakes a cluster there. Clients of clusters whose volumes are on
// the lost node are held, whether these doze or are hibernated, and are answered once the node is back.
func TestNodes_oneIsLost(t *testing.T) {
	whole(t)
	s := alone(t)
	here, there := s.twoNodes()
	near, far, dozing := s.cluster("near", 1), s.cluster("far", 1), s.cluster("dozing", 1)
	dozing.Annotations[scenario.DozeMinutes] = dozesLater
	s.startsOn(here, near)
	s.startsOn(there, far)
	s.startsOn(there, dozing)
	s.clientOn(here, near)
	lost := s.replicaOn(there)
	s.annotate(dozing, scenario.DozeMinutes, dozeMinutes)
	s.sleepTogether(near, far)
	before := s.dozes(dozing)
	s.annotate(dozing, scenario.DozeMinutes, dozesLater)

	layout, err := cluster.DefaultLayout("..")
	s.must(err)
	r := s.reads()
	restore, err := layout.CutSecondNode(s.ctx)
	s.must(err)
	t.Cleanup(func() { _ = restore() })
	cut := time.Now()
	s.awaitSlicesOf(lost.UID, 0, near, far, dozing)
	s.leadsAway(near)
	answer, err := kube.QueryAs(s.ctx, near, "rw", fromAfar, "select 1")
	if err != nil || answer != "1" {
		t.Errorf("a client on the node that is left got %q (%v)", answer, err)
	}
	t.Logf("a client on the node that is left was answered %.1fs after the other was lost", time.Since(cut).Seconds())

	r.typed("kubectl wait --for=condition=Ready=Unknown node/" + there + " --timeout=3m")
	s.leadsAway(far)
	answers := make(chan error, 2)
	for _, c := range []*cnpgv1.Cluster{far, dozing} {
		go func() {
			answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
			if err != nil || answer != "1" {
				err = fmt.Errorf("a client of %s got %q: %w", c.Name, answer, err)
			}
			answers <- err
		}()
	}
	_, err = kube.AwaitEventSaying(s.ctx, far, "WakeDelayed", "cannot be scheduled", toHibernate+toSettle)
	s.must(err)
	s.must(restore())
	back := time.Now()
	s.must(<-answers)
	s.must(<-answers)
	t.Logf("the clients of clusters on the lost node were answered %.1fs after it was back", time.Since(back).Seconds())
	s.rolledOut()
	s.awakeAgain(dozing)
	if now := s.instances(dozing)[0]; now.UID != before.UID {
		t.Error("the pod of the cluster that dozed was replaced")
	}
	s.must(kube.AwaitHealthy(s.ctx, far, toHealthy))
	s.sleeps(far)
	s.answers(far)
}

// twoNodes returns a node, and another one that can be disturbed.
func (s *story) twoNodes() (here, there string) {
	s.Helper()
	s.onlyHere()
	var nodes corev1.NodeList
	s.must(kube.List(s.ctx, &nodes))
	if len(nodes.Items) < 2 {
		s.Skip("the cluster has one node")
	}
	return nodes.Items[0].Name, nodes.Items[1].Name
}

// startsOn is starts for a cluster whose instances are on that node.
func (s *story) startsOn(node string, c *cnpgv1.Cluster) {
	s.Helper()
	c.Spec.Affinity.NodeSelector = map[string]string{corev1.LabelHostname: node}
	s.starts(c)
}

// clientOn starts a client on that node.
func (s *story) clientOn(node string, c *cnpgv1.Cluster) {
	s.Helper()
	s.must(kube.StartClientPod(s.ctx, c, func(pod *corev1.Pod) { pod.Spec.NodeName = node }))
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
}

// replicaOn returns the plugin's replica on that node. After a rollout all may be on the other one: then it ends one, because the
// scheduler prefers the node that has none.
func (s *disturber) replicaOn(node string) (found corev1.Pod) {
	s.Helper()
	s.until(func() bool {
		s.rolledOut()
		replicas := s.replicas()
		for _, replica := range replicas {
			if replica.Spec.NodeName == node {
				found = replica
				return true
			}
		}
		s.endReplica(replicas[0])
		return false
	}, "a replica of the plugin is on "+node)
	return found
}
