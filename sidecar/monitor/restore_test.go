package monitor

import (
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestSample_restoresWhatIsProvenToHold(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		change func(*instance)
		proven bool
	}{
		{"when nothing has happened", func(*instance) {}, true},
		{"when only the maintenance database had sessions", func(i *instance) { i.sample.Ledger["postgres"] = activity.Database{Sessions: 4} }, true},
		{"not when a session has come and gone", func(i *instance) { i.sample.Ledger["app"] = activity.Database{Sessions: 4} }, false},
		{"not when the server was restarted", func(i *instance) { i.sample.Started++ }, false},
		{"not without socket events", func(i *instance) { i.openErr = unsupported }, false},
		{"not when the earlier process did not know", func(i *instance) { i.kept.State.IdleSince = time.Time{} }, false},
		{"not when somebody was there since", func(i *instance) { i.proven = []activity.Ended{client(time.Now())} }, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			watched(t, func(t *testing.T, i *instance, m *Monitor) {
				since := time.Now().Add(-20 * time.Second)
				i.kept = &Checkpoint{
					Started: 7, Ledger: activity.Ledger{"postgres": {}, "app": {}},
					State: idle.State{IdleSince: since, EligibleSince: since, SampledUntil: since, LastActivity: since},
				}
				row.change(i)
				seen, change := m.Sample(t.Context())
				if change.Restored == nil || !change.Restored.LastActivity.Equal(since) {
					t.Fatalf("the last activity is lost: %+v", change.Restored)
				}
				if got := change.Restored.IdleSince.Equal(since); got != row.proven || seen.Gap == row.proven {
					t.Errorf("restored %+v, %+v", change.Restored, seen)
				}
				if _, change = m.Sample(t.Context()); change.Restored != nil {
					t.Error("it is restored once more")
				}
			})
		})
	}
}

func TestSample_anEarlierProcessHasMissedNothingOfANewServer(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		i.kept = &Checkpoint{Started: 7}
		for _, row := range []struct {
			rule    string
			started int64
			missed  bool
		}{
			{"it may have missed a session of its own server", 7, true},
			{"also later", 7, true},
			{"none of a server that was started since", 8, false},
			{"nor later", 8, false},
		} {
			i.sample.Started = row.started
			if _, _ = m.Sample(t.Context()); m.Status().SessionMissed != row.missed {
				t.Errorf("%s: %t", row.rule, m.Status().SessionMissed)
			}
		}
	})
}

func TestCheckpoint_keepsWhatIsProven(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		state := idle.State{IdleSince: time.Now(), LastActivity: time.Now()}
		if m.Checkpoint(state); i.saves != 0 {
			t.Error("what an earlier process left is overwritten before it was read")
		}
		_, _ = m.Sample(t.Context())
		if m.Checkpoint(state); i.kept == nil || i.kept.State != state || i.kept.Started != 7 {
			t.Errorf("kept is %+v", i.kept)
		}
		i.report(nil, client(time.Now()))
		handleAll(m)
		if m.Checkpoint(state); !i.kept.State.IdleSince.IsZero() || i.kept.State.LastActivity != state.LastActivity {
			t.Errorf("after a use kept is %+v", i.kept)
		}
		saves := i.saves
		for range 1000 {
			m.Checkpoint(state)
		}
		if i.saves != saves {
			t.Errorf("under a storm it is written %d times", i.saves-saves)
		}
		_, _ = m.Sample(t.Context())
		if m.Checkpoint(state); i.kept.State != state {
			t.Errorf("after the next sample kept is %+v", i.kept)
		}
		i.open = []activity.Open{{Peer: client(time.Now()).Peer, Received: 700}}
		_, _ = m.Sample(t.Context())
		if m.Checkpoint(state); !i.kept.State.IdleSince.IsZero() {
			t.Errorf("while a client logs in kept is %+v", i.kept)
		}
	})
}

func TestCheckpoint_isTriedAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, i *instance, m *Monitor) {
		_, _ = m.Sample(t.Context())
		m.Checkpoint(idle.State{})
		i.report(nil, client(time.Now()))
		handleAll(m)
		i.saveErr = errFake
		m.Checkpoint(idle.State{})
		saves := i.saves
		if m.Checkpoint(idle.State{}); i.saves != saves+1 {
			t.Error("what could not be written is taken for written")
		}
	})
}
