package control

import (
	"context"
	"log/slog"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Counts persists how an observed cluster would have slept, across restarts of the process.
type Counts interface {
	Load() (idle.WhatIf, error)
	Save(counts idle.WhatIf) error
}

// countsSaved is how often they are saved, and whenever a sleep begins: a process that is killed loses what came after.
const countsSaved = time.Minute

// counts has the newest counts.
type counts struct {
	store  Counts
	logger *slog.Logger
	newest idle.WhatIf
	saved  time.Time // when they were saved
	failed bool      // whether that has failed, which is logged once
}

// load reads those of an earlier process.
func (c *counts) load() {
	counts, err := c.store.Load()
	if err != nil {
		c.logger.Warn("cannot read how the cluster would have slept so far, and counts anew", "error", err.Error())
	}
	c.newest = counts
}

// count counts the newest decision of the primary, if the cluster is only observed. A running Backup is looked for when
// a sleep would begin.
func (l *Loop) count(ctx context.Context, seen idle.Observation) {
	s, c := &l.status, &l.counts
	if !s.Policy.Observed || s.Decision.Action == idle.ActionAsk || s.View.CurrentPrimary != l.parts.Pod {
		return
	}
	now := time.Now()
	next := c.newest.After(s.Policy, s.State, seen, s.Decision, now)
	begun := next.Begun(c.newest)
	if begun && l.cluster.backupRuns(ctx) {
		l.decide(seen, now)
		next = c.newest.After(s.Policy, s.State, seen, s.Decision, now)
	}
	c.newest, s.WhatIf = next, next
	if begun || now.Sub(c.saved).Abs() >= countsSaved {
		c.saved = now
		c.save()
	}
}

// save saves them, if there are any.
func (c *counts) save() {
	if c.newest.Decided.IsZero() {
		return
	}
	err := c.store.Save(c.newest)
	if err != nil && !c.failed {
		c.logger.Warn("cannot save how the cluster would have slept", "error", err.Error())
	}
	c.failed = err != nil
}
