package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// everyPostgres sends a signal to every PostgreSQL process in an instance's container, whose image has no ps.
const everyPostgres = `for p in /proc/[0-9]*; do case $(readlink $p/exe) in */postgres) kill -%s ${p#/proc/};; esac; done`

// A PostgreSQL that does not answer is unknown, and unknown is never idle.
func TestFrozenPostgresIsNotIdle(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	before := s.instances(c)[0]

	// Also if the test fails: the pod of a frozen server would not be deleted with its namespace.
	defer func() {
		_, _ = kube.Exec(s.ctx, s.namespace, before.Name, "postgres", "bash", "-c", fmt.Sprintf(everyPostgres, "CONT"))
	}()
	s.signalPostgres(c.Status.CurrentPrimary, "STOP")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes) // the change makes the sidecar sample
	s.unknown(c)                                                // the operator will soon report the cluster as unhealthy, which keeps it awake too
	s.awake(c, threshold, "unknown", "a frozen PostgreSQL")
	thawing := time.Now()
	s.signalPostgres(c.Status.CurrentPrimary, "CONT")
	at, err := kube.AwaitCluster(s.ctx, c, "asleep after the thaw", toSleep, scenario.HibernationOn)
	s.must(err)
	if at.Before(thawing.Add(threshold)) {
		t.Errorf("asleep %s after the thaw: the frozen time was counted as idle", at.Sub(thawing))
	}
	s.hibernated(c)
}

// notRestarted checks that an instance still has its pod and its containers.
func (s *story) notRestarted(before corev1.Pod) {
	s.Helper()
	var now corev1.Pod
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(&before), &now))
	if now.UID != before.UID || restarts(now) != restarts(before) {
		s.Errorf("instance %s was restarted: %d restarts of its containers, then %d", before.Name, restarts(before), restarts(now))
	}
}

// unknown waits until the primary's sidecar reports that its activity is unknown.
func (s *story) unknown(c *cnpgv1.Cluster) {
	s.Helper()
	s.awaitReport(c, c.Status.CurrentPrimary, "that it does not know", isUnknown)
}

func isUnknown(r report) bool { return slices.Contains(r.Blockers, "unknown") }

func (s *story) signalPostgres(pod, signal string) {
	s.Helper()
	_, err := kube.Exec(s.ctx, s.namespace, pod, "postgres", "bash", "-c", fmt.Sprintf(everyPostgres, signal))
	s.must(err)
}

// A server without a free connection is unknown; the sidecar recovers by itself once there is one.
func TestNoConnectionLeft(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "full", 1, never)
	c.Annotations[scenario.Database] = "" // a listener's session could be used for sampling
	c.Spec.PostgresConfiguration.Parameters = map[string]string{"max_connections": "12"}
	s.running(c)
	before := s.instances(c)[0]

	var sessions []*scenario.Session
	fill := func() {
		for {
			session, err := kube.Open(s.ctx, c, "rw")
			if err != nil {
				return
			}
			sessions = append(sessions, session)
		}
	}
	fill()
	if len(sessions) == 0 {
		t.Fatal("not one session could be opened")
	}
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	look := s.looking(c, 2*time.Second)
	s.awaitReport(c, c.Status.CurrentPrimary, "that it does not know", func(r report) bool {
		fill() // takes the connections that others have released since
		return isUnknown(r)
	})
	look()
	s.awake(c, threshold, "unknown", "a server without a free connection")
	s.notRestarted(before)
	for _, session := range sessions[1:] {
		session.Close()
	}
	from, to := sessions[0].Close()
	s.asleepOnTime(c, from, to, threshold)
}

// The worker is killed ten times, each time once another has sampled: the pod stays ready, and the cluster sleeps on time afterwards.
func TestWorkerKilled(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	pod := s.instances(c)[0]
	if len(processesOf(pod, "worker")) == 0 {
		s.unseen()
	}
	notReady := s.watchReadiness(c.Name + "-rw")
	killed := 0
	for range 10 {
		for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
			workers := slices.DeleteFunc(processesOf(pod, "worker"), func(process int) bool { return process == killed })
			if len(workers) != 0 {
				killed = workers[0]
				s.awaitReport(c, pod.Name, "that it samples", func(r report) bool { return r.Known })
				s.must(syscall.Kill(killed, syscall.SIGKILL))
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the worker was not started again")
			}
		}
	}
	if times := notReady(); times != 0 {
		t.Errorf("the -rw endpoint was not ready %d times", times)
	}
	s.notRestarted(pod)
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	from, to := session.Close()
	s.asleepOnTime(c, from, to, threshold)
}

// sampledAfterAUse uses the cluster, and returns the report of a sample taken afterwards. What comes after the newest sample invalidates
// the checkpoint, such as the sessions with which the instance manager sets up an instance that has just become healthy.
func (s *story) sampledAfterAUse(c *cnpgv1.Cluster, pod string) report {
	s.Helper()
	used := time.Now()
	_, err := kube.Query(s.ctx, c, "rw", "select 1")
	s.must(err)
	return s.awaitReport(c, pod, "a sample after a use", func(r report) bool {
		return r.Known && r.LastActivity.After(used) && !r.IdleSince.IsZero() && !r.SampledAt.Before(r.IdleSince)
	})
}

// The sidecar's container is killed once: its pod becomes ready again, its idle clock goes on, and PostgreSQL is not restarted.
func TestContainerKilled(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	pod := s.instances(c)[0]
	processes := processesOf(pod, "")
	if len(processes) == 0 {
		s.unseen()
	}
	idle := s.sampledAfterAUse(c, pod.Name)
	killed := time.Now()
	for _, process := range processes {
		_ = syscall.Kill(process, syscall.SIGKILL)
	}
	reading := pod.DeepCopy()
	_, err := scenario.Await(s.ctx, kube, reading, "restarted", toSettle, func(p *corev1.Pod) bool { return restarts(*p) > restarts(pod) })
	s.must(err)
	ready, err := scenario.Await(s.ctx, kube, reading, "ready", toSettle, scenario.Ready)
	s.must(err)
	t.Logf("the pod was ready again %.1fs after the kill", ready.Sub(killed).Seconds())
	after := s.awaitReport(c, pod.Name, "idle again", func(r report) bool { return r.Known && !r.IdleSince.IsZero() })
	const twoClocks = time.Second // the sidecar reads the clock since boot, which the checkpoint keeps, just before the wall clock
	if after.IdleSince.After(killed) || after.IdleSince.Before(idle.IdleSince.Add(-twoClocks)) {
		t.Errorf("the idle clock did not go on: %s, killed at %s, then %s", idle.IdleSince, killed, after.IdleSince)
	}
	for _, status := range reading.Status.ContainerStatuses {
		if status.Name == "postgres" && status.RestartCount != 0 {
			t.Errorf("PostgreSQL restarted")
		}
	}
}

// A use while the sidecar is away is detected: the restarted sidecar's clock begins after it.
func TestUseWhileTheSidecarIsAway(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	pod := s.instances(c)[0]
	processes := append(processesOf(pod, ""), processesOf(pod, "worker")...)
	if len(processes) == 0 {
		s.unseen()
	}
	signal := func(which syscall.Signal) {
		for _, process := range processes {
			_ = syscall.Kill(process, which)
		}
	}
	isIdle := func(r report) bool { return r.Known && !r.IdleSince.IsZero() && !r.SampledAt.Before(r.IdleSince) }
	s.awaitReport(c, pod.Name, "idle", isIdle)
	signal(syscall.SIGSTOP)
	began := time.Now()
	s.asSuperuser(c, "app", "select 1") // over the socket, which the kernel does not report
	signal(syscall.SIGKILL)
	reading := pod.DeepCopy()
	_, err := scenario.Await(s.ctx, kube, reading, "restarted", toSettle, func(p *corev1.Pod) bool { return restarts(*p) > restarts(pod) })
	s.must(err)
	_, err = scenario.Await(s.ctx, kube, reading, "ready", toSettle, scenario.Ready)
	s.must(err)
	after := s.awaitReport(c, pod.Name, "idle again", isIdle)
	if after.IdleSince.Before(began) {
		t.Errorf("idle since %s, and used at %s", after.IdleSince, began)
	}
}

// With the API server away across the threshold the cluster sleeps once it is back, without intervention.
func TestAPIServerDown(t *testing.T) {
	s := alone(t)
	c := s.borrow(1, awake)
	server := s.component("kube-apiserver")
	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awaitMetric(c.Status.CurrentPrimary, fmt.Sprintf("cnpg_scale_to_zero_threshold_seconds{cluster=%q} %.0f", c.Name, threshold.Seconds()))
	call := s.caller(c)
	session.Close()
	back := s.stops(server)
	pause(s.story, 2*threshold)
	if err := <-call(); err != nil {
		t.Errorf("a client got no answer while the API server was away: %v", err)
	}
	closed := time.Now()
	back()
	began := time.Now()
	at, err := kube.AwaitCluster(s.ctx, c, "asleep after the API server came back", toSleep+toSettle, scenario.HibernationOn)
	s.must(err)
	t.Logf("asleep %.1fs after the API server came back, %.1fs after the last session", at.Sub(began).Seconds(), at.Sub(closed).Seconds())
}

// component returns the process of a component of Kubernetes. Without one on this machine the test is left out.
func (s *disturber) component(name string) int {
	s.Helper()
	found := scenario.Processes(func(cmdline []string) bool {
		return len(cmdline) > 1 && cmdline[1] == name || strings.HasSuffix(cmdline[0], "/"+name)
	})
	found = slices.DeleteFunc(found, func(pid int) bool { return !scenario.InThisNetwork(pid) }) // others are of other clusters
	if len(found) != 1 {
		s.unseen()
	}
	return found[0]
}

// stops stops a process until the returned function is called, or the test ends.
func (s *disturber) stops(process int) (goesOn func()) {
	s.Helper()
	goesOn = sync.OnceFunc(func() { _ = syscall.Kill(process, syscall.SIGCONT) })
	s.Cleanup(goesOn)
	s.must(syscall.Kill(process, syscall.SIGSTOP))
	return goesOn
}

// watchReadiness counts how often a Service had no ready endpoint until the returned function is called.
func (s *story) watchReadiness(service string) func() int {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	stream, err := kube.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(s.namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service})
	s.must(err)
	count := make(chan int, 1)
	go func() {
		times := 0
		defer func() { count <- times }()
		for event := range stream.ResultChan() {
			slice, is := event.Object.(*discoveryv1.EndpointSlice)
			if !is {
				continue
			}
			ready := false
			for _, endpoint := range slice.Endpoints {
				ready = ready || endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			}
			if !ready {
				times++
			}
		}
	}()
	return func() int { stream.Stop(); cancel(); return <-count }
}

// processesOf lists this machine's processes that run the pod's sidecar with the given subcommand or, without one, its
// supervisor.
func processesOf(pod corev1.Pod, subcommand string) []int {
	return scenario.Processes(func(cmdline []string) bool {
		if subcommand == "" {
			return cmdline[0] == "/supervisor"
		}
		return cmdline[0] == "/sidecar" && len(cmdline) > 1 && cmdline[1] == subcommand
	}, string(pod.UID))
}

// toRestore bounds all that is restored after a test: the rollouts of the operator and the plugin among them.
const toRestore = 15 * time.Minute

// cleanup returns a context for restoring state after the test has ended.
func cleanup(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), toRestore)
	t.Cleanup(cancel)
	return ctx
}
