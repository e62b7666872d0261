package monitor

import (
	"errors"
	"io/fs"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// saved describes the last checkpoint.
type saved struct {
	at     time.Time
	proven bool
	failed bool
}

// Checkpoint saves the state for a process started after this one. Without socket events, that process could prove nothing from
// it.
func (m *Monitor) Checkpoint(state idle.State) {
	if !m.restored { // the checkpoint of an earlier process has not been read yet
		return
	}
	now := time.Now()
	proven := m.status.Known && m.sockets.watching() && m.since.used.IsZero()
	if !proven && !m.saved.proven && now.Sub(m.saved.at) < sampleApart { // the last checkpoint is equivalent
		return
	}
	kept := Checkpoint{Specification: m.settings.Specification, State: idle.State{LastActivity: state.LastActivity}}
	if proven {
		kept.State, kept.Ledger, kept.Started = state, m.newest.ledger, m.newest.started
	}
	err := m.parts.Checkpoints.Save(kept)
	if err != nil && !m.saved.failed {
		m.parts.Logger.Warn("cannot save the checkpoint", "error", err.Error())
	}
	m.saved = saved{at: now, proven: proven || err != nil, failed: m.saved.failed || err != nil}
}

// SavedSpecification returns the specification of the newest checkpoint, which an earlier process may have saved; empty without one.
func (m *Monitor) SavedSpecification() string {
	kept, err := m.parts.Checkpoints.Load()
	if err != nil {
		return ""
	}
	return kept.Specification
}

// restore resumes the clock of an earlier process if it is proven that nothing happened meanwhile: the server has not
// restarted, no database had a new session, and socket events have been received. Otherwise the clock starts anew.
func (m *Monitor) restore(sample postgres.Sample) *idle.State {
	if m.restored {
		return nil
	}
	m.restored = true
	kept, err := m.parts.Checkpoints.Load()
	m.resumed = !errors.Is(err, fs.ErrNotExist)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.parts.Logger.Warn("cannot read the checkpoint of an earlier sidecar", "error", err.Error())
		}
		return nil
	}
	proven := kept.Started == sample.Started && kept.Ledger.Same(sample.Ledger) && m.sockets.watching() && m.since.used.IsZero()
	m.parts.Logger.Info("read the checkpoint of an earlier sidecar", "proven", proven, "idleSince", kept.State.IdleSince)
	if !proven || kept.State.IdleSince.IsZero() {
		return &idle.State{LastActivity: kept.State.LastActivity}
	}
	m.since.gap = false
	return &idle.State{
		IdleSince: kept.State.IdleSince, EligibleSince: kept.State.EligibleSince,
		SampledUntil: time.Now(), LastActivity: kept.State.LastActivity,
	}
}
