package tests

import (
	"maps"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// An observed cluster is left alone. Its sidecar counts the sleeps that the cluster makes once it is enabled, with the
// same client, and goes on counting after a crash.
func TestObserve(t *testing.T) {
	t.Parallel()
	const minutes, threshold = "0.25", 15 * time.Second
	s := begin(t)
	c := s.borrow(1, awake)
	s.annotate(c, scenario.Enabled, "observe")
	s.annotate(c, scenario.InactivityMinutes, minutes)
	schedule := scenario.NewScheduledBackup(c, "yearly", "0 0 0 1 1 *")
	s.must(kube.Create(s.ctx, schedule))
	s.must(kube.Get(s.ctx, client.ObjectKeyFromObject(c), c))
	annotations := maps.Clone(c.Annotations)

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
		for _, worker := range processesOf(s.instances(c)[0], "worker") {
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
}
