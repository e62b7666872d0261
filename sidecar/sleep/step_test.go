package sleep

import (
	"slices"
	"testing"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// TestStep_anAnnouncementThatComesToNothing holds what the exploration cannot: nothing is suspended for an attempt that is bound
// to end.
func TestStep_anAnnouncementThatComesToNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		before []Event
		view   View
	}{
		{
			"its time was nearly over when it was written", []Event{Timeout{TimerExpiry}},
			View{Primary: true, Healthy: true, Manual: true, Announced: announcement},
		},
		{"the cluster has become unhealthy", nil, View{Primary: true, Manual: true, Announced: announcement}},
		{"somebody has removed it", nil, View{Primary: true, Healthy: true, Manual: true}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			m := Machine{phase: Announcing, pending: Announce, view: View{Primary: true, Healthy: true, Manual: true}}
			for _, e := range row.before {
				m, _ = Step(m, e)
			}
			m, out := Step(m, Completed{Action: Announce, Announcement: announcement, View: row.view})
			if m.Phase() != Retracting || len(out.Reports) != 1 || out.Reports[0].Result != ResultAborted {
				t.Errorf("%s, %+v", m.Phase(), out)
			}
		})
	}
}

// TestStep_failedRetriesDelayNoAttempt retries to undo an attempt to doze for as long as an API server may be away.
func TestStep_failedRetriesDelayNoAttempt(t *testing.T) {
	t.Parallel()
	m := Machine{phase: Retracting, pending: ReadCluster, doze: true, retries: retries{backoff: long, attempts: 1}, view: View{Primary: true, Healthy: true}}
	for range 20 {
		m, _ = Step(m, Completed{Action: ReadCluster, Outcome: Lost})
		m, _ = Step(m, Timeout{TimerRetry})
	}
	m, _ = Step(m, Completed{Action: ReadCluster, View: m.view})
	if next := m.Timers()[TimerRetry]; m.Phase() != Awake || next != firstLongRetry {
		t.Errorf("%s, and the next attempt comes after %s", m.Phase(), next)
	}
}

func TestStep_delaysTheNextAttempt(t *testing.T) {
	t.Parallel()
	serving := View{Primary: true, Healthy: true}
	lost := func(a Action) []Event { return []Event{Completed{Action: a, Outcome: Lost}} }
	for _, row := range []struct {
		rule   string
		doze   bool
		phase  Phase
		asked  Action
		events []Event
		want   retries
	}{
		{"a doze that an uncounted session has prevented waits longer each time", true, Sampling, Sample,
			[]Event{Completed{Action: Sample, Blocker: idle.ReasonConnecting}}, retries{backoff: long, attempts: 4, tries: 3}},
		{"a client that prevents it is no failure", true, Sampling, Sample,
			[]Event{Completed{Action: Sample, Blocker: idle.ReasonActive}}, retries{}},
		{"a client that prevents a hibernation is none either", false, Sampling, Sample,
			[]Event{Completed{Action: Sample, Blocker: idle.ReasonConnecting}}, retries{}},
		{"a doze whose fence is lost waits longer each time", true, Hibernating, Fence,
			append(lost(Fence), Completed{Action: ReadCluster, View: serving}), retries{backoff: long, attempts: 4, tries: 3}},
		{"a hibernation whose patch is lost is tried again soon", false, Hibernating, Hibernate,
			append(lost(Hibernate), Completed{Action: ReadCluster, View: serving}), retries{backoff: short, attempts: 3, tries: 4}},
		{"a conflict does not lengthen the wait after a failure", true, Announcing, Announce,
			[]Event{Completed{Action: Announce, Outcome: Conflict}}, retries{backoff: short, attempts: 3, tries: 4}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			m := Machine{phase: row.phase, pending: row.asked, doze: row.doze, retries: retries{attempts: 3, tries: 3}, view: serving}
			for _, e := range row.events {
				m, _ = Step(m, e)
			}
			if m.retries != row.want {
				t.Errorf("%+v, want %+v", m.retries, row.want)
			}
		})
	}
}

// TestStep_resumingDelaysNoAttempt fails to resume the schedules while the next attempt waits.
func TestStep_resumingDelaysNoAttempt(t *testing.T) {
	t.Parallel()
	m := Machine{phase: Awake, doze: true, retries: retries{backoff: long, attempts: 4}, resume: resumeFirst, resumeWaits: true, view: View{Primary: true, Healthy: true}}
	before := m.Timers()[TimerRetry]
	if m, _ = Step(m, Timeout{TimerResume}); m.Phase() != Resuming || m.Timers()[TimerRetry] != before {
		t.Errorf("%s, and %s of %s", m.Phase(), m.Timers()[TimerRetry], before)
	}
	m, _ = Step(m, Timeout{TimerRetry})
	if m, out := Step(m, Completed{Action: Resume, Outcome: Lost}); m.backoff != none || !slices.Contains(out.Actions, Observe) {
		t.Errorf("the attempt still waits after its time: %d, %v", m.backoff, out.Actions)
	}
}

func TestStep_theMarksOfADoze(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		view View
		want Phase
	}{
		{"a primary whose doze ends stays unready until PostgreSQL serves", View{Primary: true, Healthy: true, DozeEnding: true}, Restarting},
		{"a standby does not doze and stays ready", View{Healthy: true, DozeEnding: true}, Awake},
		{"a primary removes marks that are not ours and stays ready", View{Primary: true, Healthy: true, ForeignMarks: true}, Retracting},
		{"a standby leaves them to it", View{Healthy: true, ForeignMarks: true}, Awake},
	} {
		m, out := Step(Machine{}, Viewed{row.view})
		if m.Phase() != row.want || slices.Contains(out.Actions, WithdrawReadiness) != (row.want == Restarting) {
			t.Errorf("%s: %s, asks for %v", row.rule, m.Phase(), out.Actions)
		}
	}
}
