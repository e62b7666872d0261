package tests

import (
	"encoding/json"
	"maps"
	"os/exec"
	"syscall"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// An observed cluster is left alone. Its sidecar counts the sleeps that the cluster makes once it is enabled, with the
// same client, also after a crash, and the report has the sleep that follows and the duration of the wake.
func TestObserve(t *testing.T) {
	t.Parallel()
	const minutes, threshold = "0.25", 15 * time.Second
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "observed", 1, never)) // one that was borrowed has counted other tests' wakes
	s.annotate(c, scenario.Enabled, "observe")
	s.annotate(c, scenario.InactivityMinutes, minutes)
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	annotations := maps.Clone(c.Annotations)

	instance := s.instances(c)[0]
	if len(processesOf(instance, "worker")) == 0 {
		s.unseen()
	}
	visit := func() (before, after time.Time) {
		session := s.open(c, "rw")
		before = time.Now()
		session.Close()
		return before, time.Now()
	}
	for round := range 2 {
		before, after := visit()
		seen := s.awaitReport(c, c.Status.CurrentPrimary, "that it would be asleep", func(r report) bool {
			return r.WhatIf.Own.Since.After(before)
		})
		if since := seen.WhatIf.Own.Since; since.Before(before.Add(threshold)) ||
			since.After(after.Add(threshold+toAttempt)) {
			t.Errorf("it would be asleep since %s, %s after the session", since, since.Sub(after))
		}
		if seen.Reason != "observed" || seen.WhatIf.Own.Count <= round {
			t.Errorf("the sidecar reports %+v", seen)
		}
		for _, worker := range processesOf(instance, "worker") {
			s.must(syscall.Kill(worker, syscall.SIGKILL))
		}
		s.awaitReport(c, c.Status.CurrentPrimary, "the earlier sleeps",
			func(r report) bool { return r.WhatIf.Own.Count >= seen.WhatIf.Own.Count })
	}

	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(schedule), schedule))
	if !maps.Equal(c.Annotations, annotations) || suspended(schedule) || len(s.slices(c)) != 0 {
		t.Errorf("something was changed: annotations %v, were %v; suspended %t; slices %v", c.Annotations, annotations,
			suspended(schedule), s.slices(c))
	}

	session := s.open(c, "rw")
	s.annotate(c, scenario.Enabled, "true")
	before := time.Now()
	session.Close()
	s.asleepOnTime(c, before, time.Now(), threshold)
	asleep := time.Now()
	session = s.open(c, "rw")
	defer session.Close()
	s.awaitReport(c, c.Status.CurrentPrimary, "the sleep that is over",
		func(r report) bool { return r.WhatIf.Own.Count > 2 && r.WhatIf.Own.Since.IsZero() })
	// A wake lasts from the second that the annotation names until the sidecar's first sample, which the report follows.
	within := time.Since(asleep.Truncate(time.Second))
	out, err := exec.CommandContext(s.ctx, s.command(), "report", "-n", s.namespace, "-o",
		`jsonpath-as-json={.clusters[?(@.cluster=="`+c.Name+`")]}`).Output()
	s.must(err)
	var told []struct {
		WakeSeconds float64
		Own         struct{ Count int }
	}
	s.must(json.Unmarshal(out, &told))
	if len(told) != 1 || told[0].Own.Count < 3 || told[0].WakeSeconds <= 0 || told[0].WakeSeconds > within.Seconds() {
		t.Errorf("it was woken within %s, and the report says %s", within, out)
	}
}

// The command lists the plugin in one cluster after the other: the second one restarts once the first is ready. Enabling them then
// restarts nothing, and detaching removes the sidecars again.
func TestEnrolment(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	var clusters []*cnpgv1.Cluster
	for _, name := range []string{"first", "second"} {
		c := kube.NewCluster(s.namespace, name, 1, never)
		c.Spec.Plugins, c.Labels = nil, map[string]string{"team": "shop"}
		delete(c.Annotations, scenario.Enabled)
		clusters = append(clusters, c)
	}
	s.together(clusters...)
	program := s.command()
	do := func(command string) {
		s.Helper()
		out, err := exec.CommandContext(s.ctx, program, command, "-l", "team=shop", "-n", s.namespace).CombinedOutput()
		t.Logf("%s\n%s", command, out)
		s.must(err)
	}
	pods := func(with bool) (found []corev1.Pod) {
		s.Helper()
		for _, c := range clusters {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-1"}}
			_, err := scenario.Await(s.ctx, kube, pod, "restarted", toHealthy, func(p *corev1.Pod) bool {
				return (sidecar(*p) != nil) == with && scenario.Ready(p)
			})
			s.must(err)
			found = append(found, *pod)
		}
		return found
	}

	do("observe")
	observed := pods(true)
	for _, condition := range observed[0].Status.Conditions {
		ready, made := condition.LastTransitionTime, observed[1].CreationTimestamp
		if condition.Type == corev1.PodReady && made.Before(&ready) {
			t.Errorf("the second pod was made at %s, before the first was ready at %s", made, ready)
		}
	}
	do("enable")
	for i, pod := range pods(true) {
		if pod.UID != observed[i].UID {
			t.Errorf("enable has restarted pod %s", pod.Name)
		}
		s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(clusters[i]), clusters[i]))
		if got := clusters[i].Annotations[scenario.Enabled]; got != "true" {
			t.Errorf("cluster %s is enabled: %q", clusters[i].Name, got)
		}
	}
	do("detach")
	pods(false)
}
