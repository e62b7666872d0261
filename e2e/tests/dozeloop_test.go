package tests

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// loopEnds is what the operator logs when a plugin's hook has ended a reconciliation.
const loopEnds = "Pre-reconcile hook stopped the reconciliation loop"

// loopPause is less than the time that the operator is told to wait while a cluster dozes, and much more than the
// second after which it would reconcile such a cluster again by itself.
const loopPause = 25 * time.Second

// The plugin ends the operator's reconciliation of a cluster that dozes: the operator writes nothing about it between
// two rounds that the plugin has ended, which are half a minute apart. A client is then answered, and the pod is made
// again when it is deleted.
func TestDoze_endsTheOperatorsLoop(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrowDozing()
	verify := s.trust(c)
	for _, rule := range []string{"in its pod", "in the pod that was made again"} {
		pod := s.dozes(c)
		s.operatorRests(c, rule)
		if rule == "in its pod" {
			s.must(kube.Delete(s.ctx, &pod))
			_, err := kube.AwaitCluster(s.ctx, c, "stopped in the new pod", toHealthy, func(c *cnpgv1.Cluster) bool {
				stopped := c.Annotations[scenario.PostgresStopped]
				return stopped != "" && stopped != string(pod.UID)
			})
			s.must(err)
			s.wakesByClient(c, verify)
		}
	}
	s.wakesByClient(c, verify)
}

// Replicas of the plugin that were started while a cluster dozes let the operator rest, too.
func TestDoze_letsTheOperatorRestAfterARestartOfThePlugin(t *testing.T) {
	whole(t)
	s := disturbing(t)
	c := s.dozingCluster("restarted")
	verify := s.trust(c)
	d := s.turn(c)
	s.dozes(c)
	d.killPlugin()
	s.rolledOut()
	s.operatorRests(c, "beside new replicas")
	s.wakesByClient(c, verify)
}

// operatorRests waits until two rounds of the operator that the plugin has ended follow each other with a pause between
// them.
func (s *story) operatorRests(c *cnpgv1.Cluster, rule string) {
	s.Helper()
	since := time.Now()
	for deadline := since.Add(toDoze); ; pause(s, time.Second) {
		var last time.Time
		var lines []string
		for _, line := range s.operatorWrites(c, since) {
			lines = append(lines, line.Ts.Format(time.TimeOnly)+" "+line.Msg)
			switch {
			case line.Msg != loopEnds:
				last = time.Time{}
				continue
			case !last.IsZero() && line.Ts.Sub(last) >= loopPause:
				s.Logf("%s: the operator rested for %s", rule, line.Ts.Sub(last))
				return
			}
			last = line.Ts
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s: the operator does not rest:\n%s", rule, strings.Join(lines, "\n"))
		}
	}
}

// operatorLine is a line of the operator's log.
type operatorLine struct {
	Ts                               time.Time
	Msg, Controller, Namespace, Name string
}

// operatorWrites returns what the operator has logged since then of its reconciliations of a cluster.
func (s *story) operatorWrites(c *cnpgv1.Cluster, since time.Time) []operatorLine {
	s.Helper()
	var pods corev1.PodList
	s.must(kube.List(s.ctx, &pods, client.InNamespace(scenario.OperatorNamespace), client.MatchingLabels{"app.kubernetes.io/name": "cloudnative-pg"}))
	var found []operatorLine
	for i := range pods.Items {
		written, err := kube.LogsSince(s.ctx, scenario.OperatorNamespace, pods.Items[i].Name, "", since)
		s.must(err)
		for text := range strings.Lines(written) {
			var line operatorLine
			if json.Unmarshal([]byte(text), &line) == nil && line.Controller == "cluster" && line.Namespace == c.Namespace && line.Name == c.Name {
				found = append(found, line)
			}
		}
	}
	return found
}

// A change of a dozing cluster does not wait for a client: the cluster hibernates, or wakes with the change.
func TestDoze_endsWhenTheClusterIsChanged(t *testing.T) {
	whole(t)
	t.Parallel()
	for rule, change := range map[string]func(*testing.T, *cnpgv1.Cluster){
		"a parameter": func(_ *testing.T, c *cnpgv1.Cluster) {
			c.Spec.PostgresConfiguration.Parameters = map[string]string{"max_connections": "90"}
		},
		"a request to restart": func(_ *testing.T, c *cnpgv1.Cluster) {
			c.Annotations["kubectl.kubernetes.io/restartedAt"] = "2026-01-01T00:00:00Z"
		},
		"a standby":       func(_ *testing.T, c *cnpgv1.Cluster) { c.Spec.Instances = 2 },
		"a major version": func(t *testing.T, c *cnpgv1.Cluster) { c.Spec.ImageName = provided(t, "NEXT_MAJOR_POSTGRES_IMAGE") },
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			c := s.dozingCluster("changed")
			s.dozes(c)
			before := c.DeepCopy()
			change(t, c)
			changed := time.Now()
			s.must(kube.Patch(s.ctx, c, client.MergeFrom(before)))
			at, err := kube.AwaitCluster(s.ctx, c, "hibernated, or awake", toHealthy, func(c *cnpgv1.Cluster) bool {
				return scenario.Hibernated(c) || !fenced(c) && !scenario.HibernationOn(c) && scenario.Healthy(c)
			})
			s.must(err)
			t.Logf("hibernated (%t) or awake after %s", scenario.Hibernated(c), at.Sub(changed))
			_, err = kube.AwaitCluster(s.ctx, c, "without the marks of a doze", toSettle, func(c *cnpgv1.Cluster) bool {
				return !fenced(c) && c.Annotations[scenario.DozingSince] == ""
			})
			s.must(err)
		})
	}
}

// A Cluster that is deleted while it dozes takes its pod with it.
func TestDoze_endsWithItsCluster(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.dozingCluster("deleted")
	pod := s.dozes(c)
	s.must(kube.Delete(s.ctx, c))
	s.must(kube.AwaitGone(s.ctx, &corev1.PodList{}, pod.Namespace, pod.Name, toSettle))
}
