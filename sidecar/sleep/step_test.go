package sleep

import (
	"slices"
	"testing"
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
	m := Machine{phase: Retracting, pending: ReadCluster, doze: true, backoff: long, tries: 1, view: View{Primary: true, Healthy: true}}
	for range 20 {
		m, _ = Step(m, Completed{Action: ReadCluster, Outcome: Lost})
		m, _ = Step(m, Timeout{TimerRetry})
	}
	m, _ = Step(m, Completed{Action: ReadCluster, View: m.view})
	if next := m.Timers()[TimerRetry]; m.Phase() != Awake || next == 0 || next > firstLongRetry<<maximumRetries {
		t.Errorf("%s, and the next attempt comes after %s", m.Phase(), next)
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
