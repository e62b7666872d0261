package tests

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toOpen is longer than the time for which the readiness port stays closed without its worker.
const toOpen = 10 * time.Second

// The sidecar's worker is killed while PostgreSQL stops and while it is stopped, and its supervisor too: the cluster still dozes,
// its pod does not become ready, so that no Service leads to it, and a client wakes it.
func TestDoze_survivesItsSidecar(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.dozingCluster("orphaned")
	verify := s.trust(c)
	for _, row := range []struct {
		rule, subcommand string
		stopped          bool
	}{
		{"the worker, while PostgreSQL stops", "worker", false},
		{"the worker, while PostgreSQL is stopped", "worker", true},
		{"the supervisor, while PostgreSQL is stopped", "", true},
	} {
		s.until(func() bool { return s.dozesWithout(c, verify, row.rule, row.subcommand, row.stopped) }, row.rule)
	}
}

// dozesWithout kills the sidecar's processes when PostgreSQL is about to stop for a doze, or has stopped, and reports whether they were
// killed then.
func (s *story) dozesWithout(c *cnpgv1.Cluster, verify, rule, subcommand string, stopped bool) (then bool) {
	s.Helper()
	when := fenced
	if stopped {
		when = scenario.Dozing
	}
	before := s.instances(c)[0]
	doomed := processesOf(before, subcommand)
	if len(doomed) == 0 {
		s.unseen()
	}
	_, err := kube.AwaitCluster(s.ctx, c, "about to doze", toDoze, when)
	s.must(err)
	for _, process := range doomed {
		s.must(syscall.Kill(process, syscall.SIGKILL))
	}
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	then = scenario.Dozing(c) == stopped
	if at, err := scenario.Await(s.ctx, kube, before.DeepCopy(), "ready", toOpen, scenario.Ready); err == nil {
		s.Errorf("%s: the pod became ready at %s", rule, at.Format(time.StampMilli))
	}
	if subcommand == "" {
		_, err := scenario.Await(s.ctx, kube, before.DeepCopy(), "restarted", toHealthy, func(p *corev1.Pod) bool { return restarts(*p) > restarts(before) })
		s.must(err)
	}
	if now := s.dozes(c); now.UID != before.UID {
		s.Errorf("%s: the pod was replaced", rule)
	} else if subcommand != "" && restarts(now) != restarts(before) {
		s.Errorf("%s: the container was restarted", rule)
	}
	s.wakesByClient(c, verify)
	return then
}

// fenced reports whether the cluster is fenced.
func fenced(c *cnpgv1.Cluster) bool { return c.Annotations[scenario.Fence] != "" }

// wakesByClient checks that a client is answered at its first attempt and the doze is over.
func (s *story) wakesByClient(c *cnpgv1.Cluster, settings string) {
	s.Helper()
	start := time.Now()
	answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+settings, "select 'answered'")
	s.must(err)
	s.Logf("%s after %.2fs", answer, time.Since(start).Seconds())
	s.awakeAgain(c)
}

// awakeAgain checks that nothing is left of a doze.
func (s *story) awakeAgain(c *cnpgv1.Cluster) {
	s.Helper()
	_, err := kube.AwaitCluster(s.ctx, c, "without the marks of a doze", toHealthy, func(c *cnpgv1.Cluster) bool {
		return !fenced(c) && c.Annotations[scenario.DozingSince] == "" && c.Annotations[scenario.PostgresStopped] == "" &&
			c.Annotations[scenario.RestartFailed] == ""
	})
	s.must(err)
	again := c.Annotations[scenario.DozeMinutes] == dozeMinutes
	if again { // it might, before the gateway has left
		s.annotate(c, scenario.DozeMinutes, dozesLater)
	}
	pod := s.instances(c)[0]
	_, err = scenario.Await(s.ctx, kube, &pod, "ready", toHealthy, scenario.Ready)
	s.must(err)
	s.awaitSlices(c, toReady)
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toSettle))
	if again {
		s.annotate(c, scenario.DozeMinutes, dozeMinutes)
	}
}

// The pod is deleted while its cluster dozes: a client that comes at once is answered, and without one the cluster hibernates or is
// awake.
func TestDoze_endsWithItsPod(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	verify := s.trust(c)
	for _, patient := range []bool{false, true} {
		pod := s.dozes(c)
		s.must(kube.Delete(s.ctx, &pod))
		if patient {
			_, err := kube.AwaitCluster(s.ctx, c, "hibernated, or awake", toHealthy, func(c *cnpgv1.Cluster) bool {
				return scenario.Hibernated(c) || !fenced(c) && !scenario.HibernationOn(c)
			})
			s.must(err)
		}
		s.wakesByClient(c, verify)
		if now := s.instances(c)[0]; now.UID == pod.UID {
			t.Error("the pod was not replaced")
		}
	}
}

// PostgreSQL cannot start in the pod in which its cluster dozed, because a directory has the name of its socket, and can in a new one:
// the pod is replaced, once, and the client that woke the cluster is answered.
func TestDoze_survivesAPostgreSQLThatDoesNotStart(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	verify := s.trust(c)
	pod := s.dozes(c)
	_, err := kube.Exec(s.ctx, pod.Namespace, pod.Name, "postgres", "sh", "-c", `mkdir -p "$PGHOST/.s.PGSQL.5432/taken"`)
	s.must(err)
	start := time.Now()
	answer, err := kube.QueryAs(s.ctx, c, "rw", fromAfar+" "+verify, "select 'answered'")
	s.must(err)
	t.Logf("%s after %.1fs", answer, time.Since(start).Seconds())
	_, err = kube.AwaitEvent(s.ctx, c, "RestartFailed", toSettle)
	s.must(err)
	s.awakeAgain(c)
	now := s.instances(c)
	if len(now) != 1 || now[0].UID == pod.UID {
		t.Fatal("the pod was not replaced")
	}
	second := s.dozes(c)
	s.wakesByClient(c, verify)
	if second.UID != now[0].UID || s.instances(c)[0].UID != second.UID {
		t.Error("the pod was replaced a second time")
	}
}

// A person ends a doze: PostgreSQL serves again, and the pod is back in its Services.
func TestDoze_endsWhenAPersonSaysSo(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	for _, key := range []string{scenario.Fence, scenario.DozeMinutes} {
		pod := s.dozes(c)
		start := time.Now()
		s.must(kube.Annotate(s.ctx, c, key, nil))
		s.awakeAgain(c)
		t.Logf("without %s it was awake after %.1fs", key, time.Since(start).Seconds())
		if now := s.instances(c); len(now) != 1 || now[0].UID != pod.UID || restarts(now[0]) != 0 {
			t.Errorf("without %s: the pod was replaced, or a container restarted", key)
		}
	}
}

// fences reports whether a change fences a cluster.
func fences(change scenario.Change) bool {
	before, after := change.Before.GetAnnotations(), change.After.GetAnnotations()
	return change.Kind == cnpgv1.ClusterKind && after[scenario.Fence] != "" && before[scenario.Fence] == ""
}

// stoppingSlowly is how long PostgreSQL takes to stop while a client waits. The sidecar records the stop, or the plugin begins to look
// for itself, only later.
const stoppingSlowly = 5 * time.Second

// A person replaces the Cluster by a manifest without the fence and the marks of the doze while PostgreSQL is about to stop, and still
// serves. A client that connects then is held until it serves again, and not passed to the one that stops, which would cut it.
func TestDoze_isReplacedWhilePostgreSQLStops(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	interceptor := s.intercept() // the API server learns of it while the cluster is made
	held, release := interceptor.Hold(fences)
	defer release()
	c := s.dozingCluster("replaced")
	pod := s.instances(c)[0]
	checkpointers := scenario.Processes(func(cmdline []string) bool { return strings.Contains(cmdline[0], "checkpointer") }, string(pod.UID))
	if len(checkpointers) != 1 {
		s.unseen()
	}
	call := s.caller(c)
	s.held(held)
	t.Cleanup(func() { _ = syscall.Kill(checkpointers[0], syscall.SIGCONT) })
	s.must(syscall.Kill(checkpointers[0], syscall.SIGSTOP)) // the instance manager has a checkpoint written before it stops PostgreSQL
	release()
	_, err := kube.AwaitCluster(s.ctx, c, "fenced", toDoze, fenced)
	s.must(err)
	s.writesACheckpoint(&pod)

	s.must(retry.RetryOnConflict(retry.DefaultRetry, func() error { // kubectl replace reads the version, too
		if err := kube.Get(s.ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		c.Annotations = kube.NewCluster(s.namespace, c.Name, 1, never).Annotations
		c.Annotations[scenario.DozeMinutes] = dozesLater
		return kube.Update(s.ctx, c)
	}))
	answer := call()
	select {
	case err := <-answer:
		t.Fatalf("the client was not held: %v", err)
	case <-time.After(stoppingSlowly):
	}
	s.must(syscall.Kill(checkpointers[0], syscall.SIGCONT))
	start := time.Now()
	s.must(<-answer)
	t.Logf("the client was answered %.1fs after PostgreSQL could stop", time.Since(start).Seconds())
	s.awakeAgain(c)
	if now := s.instances(c); len(now) != 1 || now[0].UID != pod.UID || restarts(now[0]) != restarts(pod) {
		t.Error("the pod was replaced, or a container restarted")
	}
}

// writesACheckpoint waits until a session of the pod's PostgreSQL waits for a checkpoint.
func (s *story) writesACheckpoint(pod *corev1.Pod) {
	s.Helper()
	const query = "select count(*) from pg_stat_activity where state = 'active' and query ilike 'checkpoint%'"
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		out, err := kube.Exec(s.ctx, pod.Namespace, pod.Name, "postgres", "psql", "-XAtqc", query)
		if err == nil && strings.TrimSpace(out) != "0" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("no session writes a checkpoint: %q, %v", out, err)
		}
	}
}

// A fence that a person set is no doze, and one that replaces ours is not lifted.
func TestDoze_leavesAPersonsFence(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	s.annotate(c, scenario.DozeMinutes, dozesLater)
	for _, row := range []struct {
		rule, value string
		dozes       bool
		set         func(c *cnpgv1.Cluster, value string)
	}{
		{"set while it was awake", `["*"]`, false, s.fences},
		{"set while it dozed", fmt.Sprintf("[%q]", s.instances(c)[0].Name), true, s.fences},
		{"applied while it dozed", `["*"]`, true, s.appliesFence},
	} {
		if row.dozes {
			s.dozes(c)
		}
		row.set(c, row.value)
		s.annotate(c, scenario.DozeMinutes, dozeMinutes)
		s.refusedSoon(c)
		_, err := kube.AwaitCluster(s.ctx, c, "without the fence, or dozing", dozeAfter+toDozeAnyhow, func(c *cnpgv1.Cluster) bool {
			return c.Annotations[scenario.Fence] != row.value || !row.dozes && c.Annotations[scenario.DozingSince] != ""
		})
		if err == nil {
			t.Errorf("%s: the annotations are %v", row.rule, c.Annotations)
		}
		s.must(kube.Annotate(s.ctx, c, scenario.Fence, nil))
		s.must(kube.Annotate(s.ctx, c, corev1.LastAppliedConfigAnnotation, nil))
		s.awakeAgain(c)
	}
}

// toDozeAnyhow is how long after the time for a doze the test watches a cluster that must not doze.
const toDozeAnyhow = 20 * time.Second

// refusedSoon checks that no client is answered any more: the instance manager obeys a fence within a moment.
func (s *story) refusedSoon(c *cnpgv1.Cluster) {
	s.Helper()
	for deadline := time.Now().Add(toSettle); ; pause(s, pollEvery) {
		out, err := kube.QueryAs(s.ctx, c, "rw", "connect_timeout=5", "select 1")
		if err != nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("a client still gets %q", out)
		}
	}
}

// fences sets the fence like kubectl cnpg fencing on.
func (s *story) fences(c *cnpgv1.Cluster, value string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, scenario.Fence, value)
	s.must(kube.Patch(s.ctx, c.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner("kubectl-cnpg")))
}

// appliesFence applies a manifest with the fence that the cluster has, like kubectl apply without --server-side: it sends only what
// differs.
func (s *story) appliesFence(c *cnpgv1.Cluster, value string) {
	s.Helper()
	manifest, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{scenario.Fence: value}}})
	s.must(err)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{corev1.LastAppliedConfigAnnotation: string(manifest)}}})
	s.must(err)
	s.must(kube.Patch(s.ctx, c.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.FieldOwner("kubectl-client-side-apply")))
}

// A person who hibernates a dozing cluster gets what they asked for: no client wakes it, and no fence is left when they wake it.
func TestDoze_yieldsToAPersonsHibernation(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	s.dozes(c)
	s.annotate(c, scenario.Hibernation, "on")
	s.hibernated(c)
	_, err := kube.AwaitCluster(s.ctx, c, "without a fence", toSettle, func(c *cnpgv1.Cluster) bool { return !fenced(c) })
	s.must(err)
	if out, err := kube.QueryAs(s.ctx, c, "rw", "connect_timeout=5", "select 1"); err == nil {
		t.Errorf("a client got %q", out)
	}
	s.asleep(c, "hibernated by a person")
	s.wake(c)
	s.awakeAgain(c)
}

// Without an operator a cluster dozes, and its clients are answered, also by gateways that were started while it dozed.
func TestDoze_survivesOperatorAndGateways(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := kube.NewCluster(s.namespace, "unattended", 1, never)
	c.Annotations[scenario.DozeMinutes] = dozeMinutes
	// A cluster that dozed during another test's turn might not be healthy afterwards, and without an operator would not become so.
	c.Annotations[scenario.KeepAwakeUntil] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	s.running(c)
	verify := s.trust(c)
	d := s.turn(c)
	d.withoutOperator()
	s.annotate(c, scenario.KeepAwakeUntil, time.Now().UTC().Format(time.RFC3339))
	s.dozes(c)
	s.wakesByClient(c, verify)
	s.dozes(c)
	d.killPlugin()
	s.answers(c, verify)
	s.awakeAgain(c)
}

// The API server is away for half a minute while one cluster dozes, the PostgreSQL of another one stops, and a third is about to
// doze, at whatever point of its way: all clients that come meanwhile are answered, and each cluster serves afterwards.
func TestDoze_survivesTheAPIServer(t *testing.T) {
	whole(t)
	const away = 30 * time.Second
	s := alone(t)
	server := s.component("kube-apiserver")
	var clusters []*cnpgv1.Cluster
	for _, name := range []string{"dozing", "stopping", "leaving"} {
		c := kube.NewCluster(s.namespace, name, 1, never)
		c.Annotations[scenario.DozeMinutes] = dozeMinutes
		c.Annotations[scenario.KeepAwakeUntil] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		clusters = append(clusters, c)
	}
	s.together(clusters...)
	dozing, stopping, leaving := clusters[0], clusters[1], clusters[2]
	mayDoze := func(c *cnpgv1.Cluster) { s.annotate(c, scenario.KeepAwakeUntil, time.Now().UTC().Format(time.RFC3339)) }
	mayDoze(dozing)
	s.dozes(dozing)
	callers := make([]func() <-chan error, len(clusters))
	for i, c := range clusters {
		callers[i] = s.caller(c)
	}
	mayDoze(stopping)
	pause(s.story, time.Duration(randomly(t).Int64N(int64(wayDown/2))))
	mayDoze(leaving)
	_, err := kube.AwaitCluster(s.ctx, stopping, "fenced", toDoze, fenced)
	s.must(err)
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(leaving), leaving))
	t.Logf("the annotations of the one that is about to doze: %v", leaving.Annotations)

	goesOn := s.stops(server)
	calls := make([][]<-chan error, len(clusters))
	for range 3 {
		for i, call := range callers {
			calls[i] = append(calls[i], call())
		}
		pause(s.story, away/3)
	}
	goesOn()
	back := time.Now()
	for i, c := range clusters {
		for _, answered := range calls[i] {
			if err := <-answered; err != nil {
				t.Errorf("a client of the one that was %s: %v", c.Name, err)
			}
		}
		t.Logf("the clients of the one that was %s were answered %.1fs after the API server was back", c.Name, time.Since(back).Seconds())
	}
	for _, c := range clusters {
		s.wakesByClient(c, "")
	}
}
