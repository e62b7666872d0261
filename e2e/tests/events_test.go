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

// The Events of a cluster that is kept awake for minutes, falls asleep and is woken tell that story, each part once: nothing is
// repeated with the samples, which come at least every minute.
func TestEventsTellTheStoryOnce(t *testing.T) {
	image := neighbourImage(t)
	t.Parallel()
	s := begin(t)
	c := kube.NewCluster(s.namespace, "told", 1, never)
	neighbour := s.neighbour(image)
	c.Spec.Plugins = append(c.Spec.Plugins, neighbour)
	s.running(c)
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")))
	backup := s.backup(c, neighbour.Name, time.Hour)
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold+150*time.Second, "a Backup that runs")
	s.tells(c, map[string]int{"SleepBlocked": 1})

	s.must(kube.Delete(s.ctx, backup))
	s.sleeps(c)
	s.staysAsleep(c, time.Minute, "nobody comes")
	s.tells(c, map[string]int{"SleepBlocked": 1, "Hibernated": 1})

	_, err := kube.QueryAs(s.ctx, c, "rw", fromAfar, "select 1")
	s.must(err)
	_, err = kube.AwaitEvent(s.ctx, c, "Resumed", toHealthy)
	s.must(err)
	s.awake(c, 70*time.Second, "the threshold is never reached")
	s.tells(c, map[string]int{"SleepBlocked": 1, "Hibernated": 1, "Woken": 1, "Resumed": 1})
}

// tells checks that this project's Events about the cluster are exactly these, by reason.
func (s *story) tells(c *cnpgv1.Cluster, want map[string]int) {
	s.Helper()
	var events corev1.EventList
	about := fields.OneTermEqualSelector("involvedObject.name", c.Name)
	s.must(kube.List(s.ctx, &events, client.InNamespace(c.Namespace), client.MatchingFieldsSelector{Selector: about}))
	found, lines := map[string]int{}, map[string]bool{}
	for _, event := range events.Items {
		if strings.Contains(event.Source.Component, scenario.PluginDeployment) {
			found[event.Reason] += int(max(event.Count, 1))
			lines[event.Reason+": "+event.Message] = true
		}
	}
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		s.Log(line)
	}
	if difference := cmp.Diff(want, found); difference != "" {
		s.Errorf("the Events are others (- want, + found):\n%s", difference)
	}
}
