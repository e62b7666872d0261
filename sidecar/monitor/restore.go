package monitor

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// checkpoints saves checkpoints, and restores that of an earlier process.
type checkpoints struct {
	store    Checkpoints
	logger   *slog.Logger
	restored bool // whether the checkpoint of an earlier process has been read
	resumed  bool // whether there was an earlier process

	savedAt     time.Time
	savedProven bool // whether another checkpoint that proves nothing must replace the saved one at once
	failed      bool // whether one could not be saved
}

// Checkpoint saves the state for a process started after this one. Without socket events, that process could prove
// nothing from it.
func (m *Monitor) Checkpoint(state idle.State) {
	kept := Checkpoint{Specification: m.settings.Specification, State: idle.State{LastActivity: state.LastActivity}}
	connecting := slices.Contains(m.sessions.newest.Blockers, idle.ReasonConnecting) // its end would be missed
	proven := m.sessions.status.Known && m.sockets.watching() && m.sessions.used.IsZero() && !connecting
	if proven {
		kept.State, kept.Ledger, kept.Started = state, m.sessions.newest.Ledger, m.sessions.newest.Started
	}
	m.checkpoints.save(kept, proven)
}

// SavedSpecification returns the specification of the newest checkpoint, which an earlier process may have saved; empty
// without one.
func (m *Monitor) SavedSpecification() string {
	kept, err := m.checkpoints.store.Load()
	if err != nil {
		return ""
	}
	return kept.Specification
}

// save saves a checkpoint, unless the newest one is equivalent.
func (c *checkpoints) save(kept Checkpoint, proven bool) {
	if !c.restored { // the checkpoint of an earlier process has not been read yet
		return
	}
	now := time.Now()
	if !proven && !c.savedProven && now.Sub(c.savedAt) < sampleApart {
		return
	}
	err := c.store.Save(kept)
	if err != nil && !c.failed {
		c.logger.Warn("cannot save the checkpoint", "error", err.Error())
	}
	c.savedAt, c.savedProven, c.failed = now, proven || err != nil, c.failed || err != nil
}

// restore resumes the clock of an earlier process if it is proven that nothing happened meanwhile: the server has not
// restarted, no database had a new session, and socket events have shown no use. Otherwise the clock starts anew.
func (c *checkpoints) restore(sample postgres.Sample, unused bool) *idle.State {
	if c.restored {
		return nil
	}
	c.restored = true
	kept, err := c.store.Load()
	c.resumed = !errors.Is(err, fs.ErrNotExist)
	if err != nil {
		if c.resumed {
			c.logger.Warn("cannot read the checkpoint of an earlier sidecar", "error", err.Error())
		}
		return nil
	}
	proven := kept.Started == sample.Started && kept.Ledger.Same(sample.Ledger) && unused
	c.logger.Info("read the checkpoint of an earlier sidecar", "proven", proven, "idleSince", kept.State.IdleSince)
	if !proven || kept.State.IdleSince.IsZero() {
		return &idle.State{LastActivity: kept.State.LastActivity}
	}
	return &idle.State{
		IdleSince: kept.State.IdleSince, EligibleSince: kept.State.EligibleSince,
		SampledUntil: time.Now(), LastActivity: kept.State.LastActivity,
	}
}
