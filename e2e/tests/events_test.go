package tests

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// The Events of a cluster that is kept awake for many samples, falls asleep and is woken tell that story, each part once: nothing is
// repeated with the samples, or with changes of the Cluster.
func TestEventsTellTheStoryOnce(t *testing.T) {
	whole(t)
	t.Parallel()
	image := provided(t, "NEIGHBOUR_IMAGE")
	s := begin(t)
	c := kube.NewCluster(s.namespace, "told", 1, never)
	neighbour := s.neighbour(image)
	c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
	s.running(c)
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")))
	backup := s.backup(c, neighbour.Name, time.Hour)
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	_, err := kube.AwaitEvent(s.ctx, c, "SleepBlocked", toSample)
	s.must(err)
	s.sampledAgain(c, "a Backup that runs")
	s.tells(c, "SleepBlocked")

	s.must(kube.Delete(s.ctx, backup))
	s.sleeps(c)
	for range manySamples { // what reads the Cluster has seen them all when the wake has been told of
		s.annotate(c, scenario.Look, time.Now().Format(time.RFC3339Nano))
	}
	s.asleep(c, "nobody comes")
	_, err = kube.AwaitEvent(s.ctx, c, "Hibernated", toSettle)
	s.must(err)
	s.tells(c, "SleepBlocked", "Hibernated")

	_, err = kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	for _, reason := range []string{"Woken", "Resumed"} {
		_, err = kube.AwaitEvent(s.ctx, c, reason, toHealthy)
		s.must(err)
	}
	s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	s.sampledAgain(c, "the threshold is never reached")
	s.tells(c, "SleepBlocked", "Hibernated", "Woken", "Resumed")
}

// manySamples is the number of samples with which nothing may be repeated.
const manySamples = 20

// sampledAgain has the sidecar of an awake cluster sample many times, and checks that the cluster stays awake.
func (s *story) sampledAgain(c *cnpgv1.Cluster, why string) {
	s.Helper()
	defer s.looking(c, time.Second)()
	last := time.Time{}
	for range manySamples {
		last = s.awaitReport(c, c.Status.CurrentPrimary, "another sample, "+why, func(r report) bool { return r.SampledAt.After(last) }).SampledAt
	}
}

// tells checks that the plugin's Events about the cluster have these reasons and that none is repeated. A machine that stood still may
// begin another idle time, whose Event has another message, or delay the wake: both are allowed.
func (s *story) tells(c *cnpgv1.Cluster, want ...string) {
	s.Helper()
	var events corev1.EventList
	about := fields.OneTermEqualSelector("involvedObject.name", c.Name)
	s.must(kube.List(s.ctx, &events, client.InNamespace(c.Namespace), client.MatchingFieldsSelector{Selector: about}))
	lines, reasons := map[string]int32{}, map[string]bool{}
	for _, event := range events.Items {
		if strings.Contains(event.Source.Component, scenario.PluginDeployment) && event.Reason != "WakeDelayed" {
			lines[event.Reason+": "+event.Message] += max(event.Count, 1)
			reasons[event.Reason] = true
		}
	}
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		if s.Log(line); lines[line] != 1 {
			s.Errorf("%d Events instead of one: %s", lines[line], line)
		}
	}
	slices.Sort(want)
	if difference := cmp.Diff(want, slices.Sorted(maps.Keys(reasons))); difference != "" {
		s.Errorf("the Events have other reasons (- want, + found):\n%s", difference)
	}
}
