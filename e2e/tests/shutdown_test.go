package tests

import (
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toLinger is for how long PostgreSQL serves when its pod is already being deleted to sleep: kube-proxy's minimum interval
	// twice.
	toLinger = 2 * time.Second
	// toSee is how late the deletion of a pod may be seen.
	toSee = 500 * time.Millisecond
	// toStop is how long PostgreSQL may take to shut down when nobody is connected but the sidecar.
	toStop = 10 * time.Second
)

// Put to sleep by its sidecar, PostgreSQL serves until the nodes have learnt that the Services lead elsewhere. Before every other
// end of its pod nobody has asked it to, so that the hook does not wait, and never does the sidecar hold the shutdown up. How
// soon the kubelet gets round to a pod that it has only just started is another matter: `make bench` has figures.
func TestShutdowns(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "stopped", 1, never))

	// A restart in place is announced to nobody but by PostgreSQL's own answers.
	s.listens(c)
	shutdown := s.followShutdown(c)
	changed := c.DeepCopy()
	changed.Spec.PostgresConfiguration.Parameters = map[string]string{"max_connections": "90"}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(c)))
	s.stopped("a restart in place", shutdown)
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))

	for _, row := range []struct {
		rule   string
		lasts  bool // it serves for a while longer
		end    func(*corev1.Pod)
		mended func(corev1.Pod)
	}{
		{"a deleted pod", false, func(pod *corev1.Pod) { s.must(kube.Delete(s.ctx, pod)) }, s.replaced},
		{"a person's hibernation", false, func(*corev1.Pod) { s.annotate(c, scenario.Hibernation, "on") }, func(corev1.Pod) { s.wake(c) }},
		{"put to sleep", true, func(*corev1.Pod) {
			s.annotate(c, scenario.Ignore, "client="+s.client().Status.PodIP) // whoever asks whether PostgreSQL is there is a client
			s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		}, func(corev1.Pod) {}},
	} {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.listens(c)
		pod := s.instances(c)[0]
		s.unasked(pod)
		shutdown = s.followShutdown(c)
		refused := s.followRefusal(pod.Status.PodIP)
		row.end(&pod)
		deleted, err := kube.AwaitPod(s.ctx, &pod, "being deleted", threshold+time.Minute, func(p *corev1.Pod) bool {
			return !p.DeletionTimestamp.IsZero()
		})
		s.must(err)
		asked, served := s.stopped(row.rule, shutdown).Sub(deleted), refused().Sub(deleted)
		t.Logf("%s: asked to shut down within %.2fs of the deletion, served until %.2fs after it", row.rule, asked.Seconds(), served.Seconds())
		if row.lasts && (asked < toLinger-toSee || served < toLinger-toSee) || asked > toLinger+toSettle {
			t.Errorf("%s: asked to shut down %s after the deletion, served until %s after it", row.rule, asked, served)
		}
		row.mended(pod)
	}
}

// unasked demands that the note is not there for which PostgreSQL's preStop hook looks.
func (s *story) unasked(pod corev1.Pod) {
	s.Helper()
	_, err := kube.Exec(s.ctx, s.namespace, pod.Name, "postgres", "sh", "-c", `test ! -e "$PGHOST/.scale-to-zero-asleep"`)
	s.must(err)
}

// replaced waits until another pod of that name is ready.
func (s *story) replaced(gone corev1.Pod) {
	s.Helper()
	anew := gone.DeepCopy()
	_, err := kube.AwaitPod(s.ctx, anew, "replaced", toHealthy, func(p *corev1.Pod) bool {
		return p.UID != gone.UID && scenario.Ready(p)
	})
	s.must(err)
}

// listens waits until the primary is sampled and its sidecar keeps a session for the control channel.
func (s *story) listens(c *cnpgv1.Cluster) {
	s.Helper()
	s.awaitMetric(c.Status.CurrentPrimary, `listener_connected{cluster="`+c.Name+`"} 1`, 2*time.Minute)
}

func (s *story) followShutdown(c *cnpgv1.Cluster) func() (scenario.Shutdown, error) {
	s.Helper()
	shutdown, err := kube.Shutdown(s.ctx, s.namespace, c.Status.CurrentPrimary)
	s.must(err)
	return shutdown
}

// followRefusal asks an instance until it no longer accepts sessions, and returns when that was.
func (s *story) followRefusal(address string) func() time.Time {
	s.Helper()
	type answer struct {
		out string
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		out, err := kube.Client(s.ctx, s.namespace, "while pg_isready -q -t 1 -h "+address+"; do sleep 0.05; done; date +%s%3N")
		answered <- answer{out, err}
	}()
	return func() time.Time {
		s.Helper()
		got := <-answered
		s.must(got.err)
		milliseconds, err := strconv.ParseInt(strings.TrimSpace(got.out), 10, 64)
		s.must(err)
		return time.UnixMilli(milliseconds)
	}
}

// stopped demands that the shutdown took PostgreSQL no longer than it must, and returns when it was asked for, by the clock of
// the node.
func (s *story) stopped(rule string, shutdown func() (scenario.Shutdown, error)) time.Time {
	s.Helper()
	seen, err := shutdown()
	s.must(err)
	took := seen.Ended.Sub(seen.Requested)
	s.Logf("%s: the shutdown took %.2fs", rule, took.Seconds())
	if took > toStop {
		s.Errorf("%s: PostgreSQL's shutdown took %s, want at most %s", rule, took, toStop)
	}
	return seen.Requested
}
