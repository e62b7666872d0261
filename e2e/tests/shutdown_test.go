package tests

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	// toLinger is how long PostgreSQL keeps serving while its pod is being deleted to sleep: twice kube-proxy's minimum sync
	// interval.
	toLinger = 2 * time.Second
	// toStop bounds PostgreSQL's shutdown if only the sidecar is connected, which looks every two seconds whether it shuts down: half of
	// the minute to the next sample, in which a sidecar that did not look would notice.
	toStop = 30 * time.Second
)

// When the sidecar puts the cluster to sleep, PostgreSQL keeps serving until the nodes have rerouted the Services. At any other
// end of its pod nothing asks the hook to wait, and the sidecar does not hang. How long a shutdown takes is measured by `make bench`.
func TestShutdowns(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "stopped", 1, never))

	// Only PostgreSQL's own answers reveal an in-place restart.
	s.listens(c)
	shutdown := s.followShutdown(c)
	changed := c.DeepCopy()
	changed.Spec.PostgresConfiguration.Parameters = map[string]string{"max_connections": "90"}
	s.must(kube.Patch(s.ctx, changed, client.MergeFrom(c)))
	s.stopped("a restart in place", shutdown)
	s.must(kube.AwaitReachable(s.ctx, c, "rw", toHealthy)) // the operator may not even have noticed that PostgreSQL was away
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))

	for _, row := range []struct {
		rule   string
		lasts  bool // it keeps serving for a while
		end    func(*corev1.Pod)
		mended func(corev1.Pod)
	}{
		{"a deleted pod", false, func(pod *corev1.Pod) { s.must(kube.Delete(s.ctx, pod)) }, s.replaced},
		{"a person's hibernation", false, func(*corev1.Pod) { s.annotate(c, scenario.Hibernation, "on") }, func(corev1.Pod) { s.hibernated(c); s.wake(c) }},
		{"put to sleep", true, func(*corev1.Pod) {
			s.annotate(c, scenario.Ignore, "client="+s.client().Status.PodIP) // the test's own polling would count as a client
			s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		}, func(corev1.Pod) {}},
	} {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
		s.listens(c)
		pod := s.instances(c)[0]
		s.unasked(pod)
		shutdown = s.followShutdown(c)
		refused := s.followRefusal(pod.Status.PodIP)
		deletion := s.followDeletion(pod)
		row.end(&pod)
		deleted, err := deletion()
		s.must(err)
		asked, served := s.stopped(row.rule, shutdown).Sub(deleted), refused().Sub(deleted)
		t.Logf("%s: asked to shut down within %.2fs of the deletion, served until %.2fs after it", row.rule, asked.Seconds(), served.Seconds())
		// A hook that hangs would last for the pod's grace period, half an hour.
		if row.lasts && (asked < toLinger || served < toLinger) || asked > toLinger+toSettle {
			t.Errorf("%s: asked to shut down %s after the deletion, served until %s after it", row.rule, asked, served)
		}
		row.mended(pod)
	}
}

// followDeletion watches a pod. The function returned waits until the pod is to be deleted, and returns since when, in whole seconds by
// the API server's clock.
func (s *story) followDeletion(pod corev1.Pod) func() (time.Time, error) {
	s.Helper()
	selector := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", pod.Name)}
	stream, err := kube.Watch(s.ctx, &corev1.PodList{}, client.InNamespace(pod.Namespace), selector)
	s.must(err)
	return func() (time.Time, error) {
		defer stream.Stop()
		for late := time.After(toSleep); ; {
			select {
			case event, open := <-stream.ResultChan():
				if !open {
					return time.Time{}, fmt.Errorf("the watch of pod %s has ended", pod.Name)
				}
				if seen, is := event.Object.(*corev1.Pod); is && !seen.DeletionTimestamp.IsZero() {
					return seen.DeletionTimestamp.Add(-time.Duration(*seen.DeletionGracePeriodSeconds) * time.Second), nil
				}
			case <-late:
				return time.Time{}, fmt.Errorf("pod %s is not deleted after %s", pod.Name, toSleep)
			}
		}
	}
}

// unasked checks that the marker for PostgreSQL's preStop hook does not exist.
func (s *story) unasked(pod corev1.Pod) {
	s.Helper()
	_, err := kube.Exec(s.ctx, s.namespace, pod.Name, "postgres", "sh", "-c", `test ! -e "$PGHOST/.scale-to-zero-asleep"`)
	s.must(err)
}

// replaced waits until a new pod of that name is ready.
func (s *story) replaced(gone corev1.Pod) {
	s.Helper()
	anew := gone.DeepCopy()
	_, err := scenario.Await(s.ctx, kube, anew, "replaced", toHealthy, func(p *corev1.Pod) bool {
		return p.UID != gone.UID && scenario.Ready(p)
	})
	s.must(err)
}

// listens waits until the primary is sampled and its sidecar listens to the control channel.
func (s *story) listens(c *cnpgv1.Cluster) {
	s.Helper()
	s.awaitMetric(c.Status.CurrentPrimary, `listener_connected{cluster="`+c.Name+`"} 1`)
}

func (s *story) followShutdown(c *cnpgv1.Cluster) func() (scenario.Shutdown, error) {
	s.Helper()
	shutdown, err := kube.Shutdown(s.ctx, s.namespace, c.Status.CurrentPrimary)
	s.must(err)
	return shutdown
}

// followRefusal polls an instance until it no longer accepts sessions, and returns when that was. It is patient with an instance that
// does not answer.
func (s *story) followRefusal(address string) func() time.Time {
	s.Helper()
	type answer struct {
		out string
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		out, err := kube.Client(s.ctx, s.namespace, "while pg_isready -q -t 60 -h "+address+"; do sleep 0.05; done; date +%s%3N")
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

// stopped checks that PostgreSQL's shutdown took no longer than necessary, and returns when it was requested, by the node's
// clock.
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
