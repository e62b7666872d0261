package tests

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// recovers is for how long a PostgreSQL says that it is starting up, as one does that recovers from a crash.
const recovers = 20 * time.Second

// PostgreSQL is killed while it starts for a client that has woken its cluster, and takes its time when it starts again: the client is held
// until it serves, and answered at its first attempt.
func TestPostgresKilledWhileAClientWaits(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "killed", 1, never))
	_, err := kube.Query(s.ctx, c, "rw", "create table kept as select 42 as answer")
	s.must(err)
	s.sleeps(c)
	starts := s.startsSlowly(c)
	s.awaitSlices(c, toSettle, "rw", "r")

	began, answered := time.Now(), make(chan error, 1)
	var answer string
	go func() {
		var err error
		answer, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select answer from kept")
		answered <- err
	}()
	s.startingUp(c)
	before := s.instances(c)[0]
	for _, process := range scenario.Processes(isPostgres, string(before.UID)) {
		_ = syscall.Kill(process, syscall.SIGKILL)
	}
	_, err = scenario.Await(s.ctx, kube, before.DeepCopy(), "restarted", toSettle, func(p *corev1.Pod) bool { return restarts(*p) > restarts(before) })
	s.must(err)
	s.startingUp(c)
	select {
	case err := <-answered:
		t.Fatalf("the client was not held: %q, %v", answer, err)
	case <-time.After(recovers):
	}
	starts()
	if err := <-answered; err != nil || answer != "42" {
		t.Errorf("the client got %q (%v)", answer, err)
	}
	t.Logf("the client was answered after %.1fs", time.Since(began).Seconds())
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	if now := s.instances(c); len(now) != 1 || now[0].UID != before.UID {
		t.Error("the pod was replaced")
	}
	s.awaitSlices(c, between+toSettle)
	s.wokenOnce(c, began)
}

// startsSlowly makes every start of a sleeping cluster's PostgreSQL wait until the returned function is called: it replaces the
// statistics that PostgreSQL saved at its stop with a pipe into which nothing is written. PostgreSQL then starts without them, and
// removes the pipe.
func (s *story) startsSlowly(c *cnpgv1.Cluster) (starts func()) {
	s.Helper()
	var claim corev1.PersistentVolumeClaim
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-1"}, &claim))
	var volume corev1.PersistentVolume
	s.must(kube.Get(s.ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &volume))
	if volume.Spec.Local == nil {
		s.unseen()
	}
	kept := filepath.Join(volume.Spec.Local.Path, "pgdata/pg_stat/pgstat.stat")
	owner, err := os.Stat(kept)
	s.must(err)
	s.must(os.Remove(kept))
	s.must(syscall.Mkfifo(kept, 0o600))
	s.must(os.Chown(kept, int(owner.Sys().(*syscall.Stat_t).Uid), int(owner.Sys().(*syscall.Stat_t).Gid)))
	starts = sync.OnceFunc(func() {
		pipe, err := os.OpenFile(kept, os.O_WRONLY|syscall.O_NONBLOCK, 0) // which fails if nobody reads
		_ = os.Remove(kept)
		if err == nil {
			_ = pipe.Close()
		}
	})
	s.Cleanup(starts)
	return starts
}

// startingUp waits until the startup process of the cluster's only PostgreSQL runs, which startsSlowly delays.
func (s *story) startingUp(c *cnpgv1.Cluster) {
	s.Helper()
	for deadline := time.Now().Add(toHealthy); ; pause(s, pollEvery) {
		for _, pod := range s.instances(c) {
			if runs(pod, "startup") {
				return
			}
		}
		if time.Now().After(deadline) {
			s.Fatal("PostgreSQL does not start up")
		}
	}
}

// runs reports whether the PostgreSQL of a pod has a process of that title.
func runs(pod corev1.Pod, title string) bool {
	titled := func(cmdline []string) bool { return isPostgres(cmdline) && strings.Contains(cmdline[0], " "+title) }
	return len(scenario.Processes(titled, string(pod.UID))) == 1
}

// isPostgres reports whether a process is one of PostgreSQL's. The postmaster's children say in their command line what they are.
func isPostgres(cmdline []string) bool { return strings.HasPrefix(path.Base(cmdline[0]), "postgres") }

// The kernel kills the sidecar's worker for its container's memory, and later the programs of both replicas of the plugin, in their pods,
// while clients wait. PostgreSQL goes on, the cluster falls asleep on time, and the clients get in.
func TestKilledForMemory(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.borrow(1, awake)
	d := s.turn(c)
	pod := s.instances(c)[0]
	workers, started := processesOf(pod, "worker"), s.lives(c)[pod.Name].started
	if len(workers) != 1 {
		s.unseen()
	}
	session := s.open(c, "rw")
	s.must(scenario.ExhaustMemory(s.ctx, workers[0]))
	for deadline := time.Now().Add(toSettle); len(processesOf(pod, "worker")) == 0; pause(s.story, pollEvery) {
		if time.Now().After(deadline) {
			t.Fatal("the worker was not started again")
		}
	}
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "active", "an open session, after the worker was killed")
	if now := s.instances(c)[0]; now.UID != pod.UID || s.lives(c)[pod.Name].started != started {
		t.Error("PostgreSQL was restarted")
	}
	s.must(session.Run("select 1"))
	from, to := session.Close()
	s.asleepOnTime(c, from, to, threshold)
	s.annotate(c, scenario.InactivityMinutes, never)

	answered := d.clientsWithoutAnOperator(c)
	_, err := kube.AwaitCluster(s.ctx, c, "asked to wake", toSettle, func(c *cnpgv1.Cluster) bool { return !scenario.HibernationOn(c) })
	s.must(err)
	d.exhaustsMemory(s.replicas()...)
	d.scaleOperator(1)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
}

// exhaustsMemory has the kernel kill the programs of replicas for their memory, and waits until their containers have been restarted.
func (s *disturber) exhaustsMemory(replicas ...corev1.Pod) {
	s.Helper()
	for _, replica := range replicas {
		programs := scenario.Processes(func(cmdline []string) bool { return path.Base(cmdline[0]) == "plugin" }, string(replica.UID))
		if len(programs) != 1 {
			s.Fatalf("replica %s has %d processes that can be seen from here, want one", replica.Name, len(programs))
		}
		s.must(scenario.ExhaustMemory(s.ctx, programs[0]))
	}
	const killed = 128 + int32(syscall.SIGKILL)
	for _, replica := range replicas {
		_, err := scenario.Await(s.ctx, kube, replica.DeepCopy(), "restarted after it was killed", toSettle, func(p *corev1.Pod) bool {
			last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated
			return restarts(*p) > restarts(replica) && last != nil && last.ExitCode == killed
		})
		s.must(err)
	}
}
