package tests

import (
	"maps"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// threshold is the shortest threshold in these tests, thresholdMinutes the same in minutes.
const (
	threshold        = 12 * time.Second
	thresholdMinutes = "0.2"
)

// A session in any state keeps its cluster awake while it is open.
func TestOpenSessionKeepsAwake(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	for _, row := range []struct{ rule, statement string }{
		{"an idle session", "select 1"},
		{"a session idle in a transaction", "begin; select 1"},
		{"a session idle in an aborted transaction", "begin; select 1/0"},
	} {
		session := s.open(c, "rw")
		s.must(session.Run(row.statement))
		s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
		s.awake(c, threshold, "active", row.rule)
		s.annotate(c, scenario.InactivityMinutes, never)
		session.Close()
	}

	running := s.open(c, "rw")
	s.must(running.Send("select pg_sleep(20)"))
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "active", "a running statement")
	s.annotate(c, scenario.InactivityMinutes, never)
	running.Close()

	local, err := kube.OpenLocalAs(s.ctx, c.Namespace, c.Status.CurrentPrimary, "")
	s.must(err)
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.awake(c, threshold, "active", "an administrator's psql over the socket")
	before, after := local.Close()
	s.asleepOnTime(c, before, after.Add(toMissLocal), threshold) // it counts as ended with the first sample without it
}

// toMissLocal is the sampling interval while a session over the socket is open, whose end the kernel does not report.
const toMissLocal = 2 * time.Second

// A NOTIFY on the channel of the application's database counts as activity at its time.
func TestNotificationIsActivity(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	s.listens(c)
	var before, after time.Time
	for range 4 { // the kernel does not report the end of these short sessions over the socket, but their NOTIFY counts
		before = time.Now()
		s.asSuperuser(c, "app", "notify scale_to_zero, 'activity'")
		s.usedSince(c, before)
		after = time.Now()
	}
	if page := s.metrics(c.Status.CurrentPrimary); !strings.Contains(page, `cnpg_scale_to_zero_notifications_total{cluster="`+c.Name+`",kind="activity"} `) ||
		strings.Contains(page, `kind="activity"} 0`) {
		t.Errorf("the notifications are not counted:\n%s", page)
	}
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	s.asleepOnTime(c, before, after, threshold)
}

// usedSince waits until the idle clock of the primary's sidecar has begun again since then.
func (s *story) usedSince(c *cnpgv1.Cluster, began time.Time) {
	s.Helper()
	s.awaitReport(c, c.Status.CurrentPrimary, "that it was used", func(r report) bool { return !r.LastActivity.Before(began) })
}

// Annotations of a live cluster take effect without a restart, and an invalid value turns the feature off and is reported.
func TestAnnotationsAreLive(t *testing.T) {
	whole(t)
	t.Parallel()
	s := begin(t)
	c := s.borrow(1, awake)
	lives := s.lives(c)

	for _, row := range []struct{ rule, enabled, minutes, reason string }{
		{"a cluster that is not enabled", "false", thresholdMinutes, "disabled"},
		{"a switch that is neither true nor false", "yes", thresholdMinutes, "invalid_annotation"},
		{"a threshold of zero", "true", "0", "invalid_annotation"},
		{"a threshold that is no number", "true", "soon", "invalid_annotation"},
	} {
		s.annotate(c, scenario.Enabled, "false") // at no time between two rows may it sleep
		s.annotate(c, scenario.InactivityMinutes, row.minutes)
		s.annotate(c, scenario.Enabled, row.enabled)
		s.awake(c, threshold, row.reason, row.rule)
	}
	message, err := kube.AwaitEvent(s.ctx, c, "InvalidAnnotation", toSettle)
	s.must(err)
	if !strings.Contains(message, "xata.io/scale-to-zero-") {
		t.Errorf("the Event does not name the annotation: %q", message)
	}

	if now := s.lives(c); !maps.Equal(lives, now) {
		t.Errorf("the instance was restarted: %v, then %v", lives, now)
	}

	session := s.open(c, "rw")
	s.annotate(c, scenario.InactivityMinutes, thresholdMinutes)
	before, after := session.Close()
	s.asleepOnTime(c, before, after, threshold)
}
