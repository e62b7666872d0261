package control

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// Counts persists how a cluster would have slept at other thresholds, across restarts of the process. The Cluster has
// them while it hibernates, because its pods are gone.
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
func (c *counts) load() { c.newest = c.read(c.store.Load()) }

// read returns counts that are left from before, if they can be read.
func (c *counts) read(counts idle.WhatIf, err error) idle.WhatIf {
	if err != nil {
		c.logger.Warn("cannot read the saved counts of sleeps, and counts from zero", "error", err.Error())
	}
	return counts
}

// text returns the newest ones for the Cluster, which hibernates at that time; "" if there are none.
func (c *counts) text(at time.Time) string {
	counts := c.newest
	counts.Hibernated = at.UTC().Format(time.RFC3339)
	text, err := json.Marshal(counts)
	if err != nil || counts.Decided.IsZero() {
		return ""
	}
	return string(text)
}

// resume returns the counts, and whether it has added the newest wake. A pod without counts continues those on the
// Cluster, where only the wake that ended their hibernation shows how long it lasted. A later wake of this pod ends a
// doze.
func (c *counts) resume(v kubernetes.View, clock apiClock, now time.Time) (newest idle.WhatIf, woken bool) {
	wake, _ := contract.ParseLastWake(v.Annotations[contract.AnnotationLastWake]) // zero without one
	newest, woken = c.newest, wake.Depth == contract.DepthDoze
	if newest.Decided.IsZero() && v.Counts != "" {
		newest = c.read(idle.ParseWhatIf([]byte(v.Counts)))
		newest.Woken, woken = newest.Decided, wake.Since == newest.Hibernated
	}
	at := wake.At.Add(-clock.ahead)
	if !woken || newest.Decided.IsZero() || !at.After(newest.Decided) || at.Equal(newest.Woken) {
		return newest, false
	}
	return newest.AfterWake(wake.Cause, at, now), true
}

// count counts the newest decision of the primary. If the cluster is only observed, count looks for a running Backup
// when a sleep would begin. Otherwise it makes no requests of its own.
func (l *Loop) count(ctx context.Context, seen idle.Observation) {
	s, c, now := &l.status, &l.counts, time.Now()
	if !s.Policy.Watches() || s.View.CurrentPrimary != l.parts.Pod ||
		!s.Policy.Observed && (l.machine.Phase().Attempting() || s.View.Hibernating) {
		return
	}
	newest, woken := c.resume(s.View, l.cluster.clock, now)
	if woken && seen.Unknown {
		return // the wake has not ended yet
	}
	decision := s.Decision
	if decision.Action != idle.ActionNone { // whether it sleeps is known after the attempt, see idle.WhatIf.Asleep
		decision.Reason = cmp.Or(l.reporter.aborted, idle.ReasonUnknown)
		decision.Blockers = []idle.Reason{decision.Reason}
	}
	next := newest.After(s.Policy, s.State, seen, decision, now)
	begun := next.Begun(newest)
	if begun && s.Policy.Observed && l.cluster.backupRuns(ctx) {
		l.decide(seen, now)
		next = newest.After(s.Policy, s.State, seen, s.Decision, now)
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
