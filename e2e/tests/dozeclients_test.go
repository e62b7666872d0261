package tests

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// A Pooler without clients does not end a doze; a client of it does, and is answered.
func TestDoze_aPoolerLeadsToIt(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	pooler := kube.NewPooler(c, c.Name+"-pooler")
	pooler.Spec.PgBouncer.Parameters = map[string]string{"server_idle_timeout": "1"} // a connection that is kept is in use
	s.must(kube.Create(s.ctx, pooler))
	s.must(kube.AwaitReachable(s.ctx, c, "pooler", toHealthy))
	_, err := kube.AwaitCluster(s.ctx, c, "dozing", toDoze, scenario.Dozing)
	s.must(err)
	at, err := kube.AwaitCluster(s.ctx, c, "awake", 10*time.Second, func(c *cnpgv1.Cluster) bool { return !scenario.Dozing(c) })
	if err == nil {
		t.Errorf("a pooler without clients ended the doze at %s", at.Format(time.TimeOnly))
	}
	start := time.Now()
	answer, tries, err := s.askPooler(c, "pooler")
	t.Logf("%q after %.2fs, at try %d", answer, time.Since(start).Seconds(), tries)
	if err != nil || answer != "false" {
		t.Errorf("%q (%v)", answer, err)
	}
	s.awakeAgain(c)
}

// Many dozing clusters are asked at once: each client is answered, each cluster is woken once, and no pod is replaced.
func TestDoze_manyAtOnce(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	count := 6
	if soaking {
		count = 20
	}
	clusters, pods, times := make([]*cnpgv1.Cluster, count), make([]corev1.Pod, count), make([]time.Duration, count)
	for i := range clusters {
		clusters[i] = kube.NewCluster(s.namespace, fmt.Sprintf("many-%d", i), 1, never)
		clusters[i].Annotations[scenario.DozeMinutes] = dozeMinutes
		s.starts(clusters[i])
	}
	for i, c := range clusters { // the first may doze before the last is healthy
		_, err := kube.AwaitCluster(s.ctx, c, "dozing", toHealthy+toDoze, scenario.Dozing)
		s.must(err)
		pods[i] = s.instances(c)[0]
	}
	s.must(kube.StartClientPod(s.ctx, clusters[0]))
	var group sync.WaitGroup
	start := time.Now()
	for i, c := range clusters {
		group.Go(func() {
			if answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 'answered'"); err != nil || answer != "answered" {
				t.Errorf("%s: %q (%v)", c.Name, answer, err)
			}
			times[i] = time.Since(start)
		})
	}
	group.Wait()
	slices.Sort(times)
	t.Logf("%d clusters answered: half of them after %.2fs, the last after %.2fs",
		count, times[count/2].Seconds(), times[count-1].Seconds())
	for i, c := range clusters {
		s.wokenOnce(c, start)
		if now := s.instances(c); len(now) != 1 || now[0].UID != pods[i].UID || restarts(now[0]) != 0 {
			t.Errorf("%s: the pod was replaced, or a container restarted", c.Name)
		}
	}
}

// PostgreSQL is a client of its own Services, such as by dblink or a foreign server: in the first seconds after a doze, too, while they lead
// to the gateway.
func TestDoze_itsInstanceReachesItself(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	s.asSuperuser(c, "app", "create extension dblink")
	defer s.asSuperuser(c, "app", "drop extension dblink")
	s.dozes(c)
	s.annotate(c, scenario.DozeMinutes, dozesLater)
	settings := fmt.Sprintf("host=%s-rw user=app dbname=app password=%s sslmode=require "+fromAfar, c.Name, s.password(c))
	_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, `do $$
begin
	for i in 1..10 loop
		perform * from dblink('`+settings+`', 'select 1') as answer(one int);
		perform pg_sleep(0.3);
	end loop;
end $$`)
	s.must(err)
	s.awakeAgain(c)
}

// managerStops is less than the half minute after which the kubelet restarts the container of an instance manager that does not answer.
const managerStops = 15 * time.Second

// The instance manager stops answering the kubelet as soon as PostgreSQL serves again, so that the pod does not become ready: the
// gateway stays, and clients are answered through it. If the pod was ready before, they need no gateway.
func TestDoze_servesBeforeItsPodIsReady(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.dozingCluster("unready")
	s.until(func() bool { return s.servesWhileUnready(c) }, "the pod was not ready while the instance manager stood still")
}

// servesWhileUnready has a client end a doze, stops the instance manager, and checks that clients are answered. It reports whether the pod
// was not ready meanwhile.
func (s *story) servesWhileUnready(c *cnpgv1.Cluster) bool {
	s.Helper()
	pod := s.dozes(c)
	// Only then does the kubelet ask the instance manager before the pod is ready again. It needs three failures, ten seconds apart.
	_, err := scenario.Await(s.ctx, kube, pod.DeepCopy(), "without PostgreSQL's readiness", toSettle, func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.ContainerStatuses, func(status corev1.ContainerStatus) bool { return status.Name == "postgres" && !status.Ready })
	})
	s.must(err)
	managers := scenario.Processes(func(cmdline []string) bool {
		return len(cmdline) > 2 && cmdline[0] == "/controller/manager" && cmdline[1] == "instance" && cmdline[2] == "run"
	}, string(pod.UID))
	if len(managers) != 1 {
		s.unseen()
	}
	call := s.caller(c)
	defer func() { _ = syscall.Kill(managers[0], syscall.SIGCONT) }()
	first := call()
	// This process starts as soon as PostgreSQL accepts sessions. Once a client has been answered, the pod may already be ready.
	for deadline := time.Now().Add(toWake); !runs(pod, "logical replication launcher"); pause(s, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatal("PostgreSQL does not start")
		}
	}
	s.must(syscall.Kill(managers[0], syscall.SIGSTOP))
	s.must(<-first)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(&pod), &pod))
	wasReady := scenario.Ready(&pod)
	stopped, end := time.Now(), time.After(managerStops)
	answered, last := 0, call()
	for going := true; going; {
		select {
		case err := <-last:
			s.must(err)
			answered++
			pause(s, time.Second)
			last = call()
		case <-end:
			going = false
		}
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(&pod), &pod))
	unready, led := !wasReady && !scenario.Ready(&pod), s.slices(c)
	s.must(syscall.Kill(managers[0], syscall.SIGCONT))
	lasted := time.Since(stopped)
	s.must(<-last)
	s.Logf("the instance manager stopped for %.1fs, and the pod was ready: %t; %d clients were answered", lasted.Seconds(), !unready, answered)
	if answered == 0 {
		s.Error("no client was answered meanwhile")
	}
	if unready && len(led) != 2 {
		s.Errorf("the pod is not ready, and the gateway has EndpointSlices for %v, want two Services", led)
	}
	s.awakeAgain(c)
	now, tooLong := s.instances(c), lasted > managerStops+5*time.Second // for the kubelet, since this test was stopped too
	if len(now) != 1 || now[0].UID != pod.UID || restarts(now[0]) != 0 && !tooLong {
		s.Error("the pod was replaced, or a container restarted")
	}
	return unready
}

// caller returns a function that connects through -rw from this machine and asks, and says what came of it. It does without the API
// server.
func (s *story) caller(c *cnpgv1.Cluster) func() <-chan error {
	s.Helper()
	settings := fmt.Sprintf("host=%s user=app dbname=app password=%s sslmode=require", s.address(c, "rw"), s.password(c))
	return func() <-chan error {
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(s.ctx, 3*time.Minute)
			defer cancel()
			conn, err := pgx.Connect(ctx, settings)
			if err == nil {
				_, err = conn.Exec(ctx, "select 1")
				_ = conn.Close(ctx)
			}
			done <- err
		}()
		return done
	}
}
