package tests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// toCount is how long a cluster has been idle before a visit: after two uses within a second, the sidecar ignores the kernel's reports
// for a second.
const toCount = 3 * time.Second

// visitor is something that connects to PostgreSQL. Its script runs in the drivers' pod, with HOST and PGPASSWORD.
type visitor struct {
	name, script string
	// answered is set if the script prints an answer of PostgreSQL, and status is what it exits with.
	answered bool
	status   int
	// wakes is set if it wakes a sleeping cluster.
	wakes bool
	// counts is how it counts for an awake cluster, if that differs from a sleeping one.
	counts countsAs
}

// countsAs defines whether a visitor restarts the idle clock of an awake cluster.
type countsAs int

const (
	// The zero value means that it counts if and only if it wakes. anyhow: it counts, because it sends a whole startup packet, of
	// which the gateway reads more than the sidecar can see.
	anyhow countsAs = iota + 1
	// byItsLength: it is no client, but may send as many bytes as the shortest startup packet.
	byItsLength
)

// Exactly those visitors that would wake a sleeping or dozing cluster keep an awake one from sleeping. An ignored client does neither.
// They are tests of their own because they are long, and subtests that call t.Parallel start after every other test.
func TestOneRuleForBothEnds_libpq(t *testing.T) {
	whole(t)
	s, c := oneRuleForBothEnds(t, libpqVisitors())
	s.ignoresDrivers(c, libpqVisitors()[:2]) // by their address, before anything is read: what they send makes no difference
}
func TestOneRuleForBothEnds_refused(t *testing.T) {
	whole(t)
	oneRuleForBothEnds(t, refusedVisitors())
}

func TestOneRuleForBothEnds_java(t *testing.T) {
	whole(t)
	oneRuleForBothEnds(t, javaVisitors())
}

func TestOneRuleForBothEnds_python(t *testing.T) {
	whole(t)
	oneRuleForBothEnds(t, pythonVisitors())
}

func TestOneRuleForBothEnds_go(t *testing.T) {
	whole(t)
	oneRuleForBothEnds(t, goVisitors(), "connect")
}

func TestOneRuleForBothEnds_checks(t *testing.T) {
	whole(t)
	oneRuleForBothEnds(t, checkVisitors())
}

// oneRuleForBothEnds lets the visitors visit a cluster in every state. They find the programs, of e2e/cmd, below /tmp.
func oneRuleForBothEnds(t *testing.T, visitors []visitor, programs ...string) (*story, *cnpgv1.Cluster) {
	t.Helper()
	t.Parallel()
	image := provided(t, "DRIVERS_IMAGE")
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "visited", 1, never))
	s.startDrivers(c, image)
	for _, program := range programs {
		s.must(kube.Put(s.ctx, s.namespace, "drivers", "drivers", buildStatic(t, "..", "./cmd/"+program), "/tmp/"+program))
	}
	for _, v := range visitors {
		s.visitsAwake(c, v)
	}
	wakersLast := func(a, b visitor) int { return strings.Compare(fmt.Sprint(a.wakes), fmt.Sprint(b.wakes)) }
	for _, v := range slices.SortedStableFunc(slices.Values(visitors), wakersLast) {
		s.visitsAsleep(c, v)
	}
	return s, c
}

// settleIdle waits until the sidecar has considered the cluster idle for a while.
func (s *story) settleIdle(c *cnpgv1.Cluster) {
	s.Helper()
	s.awaitReport(c, c.Status.CurrentPrimary, "idle", func(r report) bool {
		return r.Known && !r.Active && !r.IdleSince.IsZero() && time.Since(r.LastActivity) > toCount
	})
}

// visitsAwake checks whether a visit begins the idle clock of an awake cluster again, as one does that would wake a sleeping one.
func (s *story) visitsAwake(c *cnpgv1.Cluster, v visitor) {
	s.Helper()
	s.settleIdle(c)
	began := time.Now()
	s.visit(c, v)
	switch {
	case v.counts == byItsLength: // it may
	case v.wakes, v.counts == anyhow:
		s.usedSince(c, began)
	default:
		s.notUsedSince(c, began, v.name)
	}
}

// notUsedSince checks that nothing since then restarted the idle clock. It waits for a sample taken when nothing was connecting any more,
// because that has considered every earlier report of the kernel.
func (s *story) notUsedSince(c *cnpgv1.Cluster, began time.Time, what string) {
	s.Helper()
	ended := time.Now()
	defer s.looking(c, 2*time.Second)()
	seen := s.awaitReport(c, c.Status.CurrentPrimary, "what it thinks of "+what, func(r report) bool {
		return r.Known && r.SampledAt.After(ended) && !slices.Contains(r.Blockers, "connecting")
	})
	if !seen.LastActivity.Before(began) {
		s.Errorf("%s restarted the idle clock of the awake cluster: %+v", what, seen)
	}
}

// visitsAsleep checks whether a visit wakes the cluster. An awake one hibernates first, or dozes if it has hibernated before.
func (s *story) visitsAsleep(c *cnpgv1.Cluster, v visitor) {
	s.Helper()
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	switch {
	case scenario.HibernationOn(c): // the visit before woke nobody
	case c.Annotations[scenario.DozeMinutes] == "":
		s.sleeps(c)
		s.annotate(c, scenario.DozeMinutes, dozesLater) // a pod can doze if it is made with this
	default:
		s.annotate(c, scenario.DozeMinutes, dozeMinutes)
		s.dozes(c)
		s.awaitSlices(c, toSettle, "rw", "r")
		s.annotate(c, scenario.DozeMinutes, dozesLater) // once woken, it might doze again before the gateway has left
	}
	s.visit(c, v)
	if !v.wakes {
		s.asleep(c, v.name)
		return
	}
	_, err := kube.AwaitCluster(s.ctx, c, "woken by "+v.name, toSettle, func(c *cnpgv1.Cluster) bool {
		return !scenario.HibernationOn(c) && !scenario.Dozing(c)
	})
	s.must(err)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.awaitSlices(c, between+toSettle)
}

// ignoresDrivers checks that no visit wakes the cluster or begins its idle clock again once the address of the drivers' pod is
// ignored. The cluster is awake at first: each replica of the gateway knows of the address when it leads the clients.
func (s *story) ignoresDrivers(c *cnpgv1.Cluster, visitors []visitor) {
	s.Helper()
	var pod corev1.Pod
	s.must(kube.Get(s.ctx, client.ObjectKey{Namespace: s.namespace, Name: "drivers"}, &pod))
	s.annotate(c, scenario.Ignore, "client="+pod.Status.PodIP)
	s.must(kube.Annotate(s.ctx, c, scenario.DozeMinutes, nil))
	s.sleeps(c)
	for _, replica := range s.replicas() {
		s.awaitSlicesOf(replica.UID, ledEach, c)
	}
	for _, v := range visitors {
		_, _ = s.runVisit(c, v, toIgnore)
		s.asleep(c, v.name+", ignored")
	}
	s.wake(c)
	s.visit(c, visitors[0]) // may still be led to the gateway
	// The gateway's own probes end with its slices; one whose announcement was lost counts.
	s.awaitSlices(c, between+toSettle)
	for _, v := range visitors {
		s.settleIdle(c)
		began := time.Now()
		s.visit(c, v)
		s.notUsedSince(c, began, v.name+", ignored")
	}
}

// toIgnore is for how long a client that is ignored waits in vain.
const toIgnore = 9 * time.Second

// visit runs a visitor's script once, bounded by the time that a wake may take, and checks how it ends.
func (s *story) visit(c *cnpgv1.Cluster, v visitor) {
	s.Helper()
	out, err := s.runVisit(c, v, toWake)
	status := 0
	if err != nil {
		var exited exec.ExitError
		if status = -1; errors.As(err, &exited) {
			status = exited.ExitStatus()
		}
	}
	if status != v.status || v.answered && !strings.Contains(out, "answered") {
		s.Errorf("%s: exit status %d (%d if too slow), want %d: %q (%v)", v.name, status, tooSlow, v.status, out, err)
	}
}

// tooSlow is the exit status of a visit that has lasted too long.
const tooSlow = 124

// runVisit returns what a visitor's script prints.
func (s *story) runVisit(c *cnpgv1.Cluster, v visitor, longest time.Duration) (string, error) {
	script := fmt.Sprintf("cat >/tmp/visit <<'END'\n%s\nEND\nexport HOST=%s-rw PATH=$PATH:/usr/lib/postgresql/17/bin PGPASSWORD=%s; exec timeout %.0f bash /tmp/visit 2>&1",
		v.script, c.Name, s.password(c), longest.Seconds())
	return kube.Exec(s.ctx, s.namespace, "drivers", "drivers", "bash", "-c", script)
}
