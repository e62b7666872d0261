package control

import (
	"errors"
	"io/fs"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/evidence"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// remember writes down what is known, for a worker that is started after this one. Where sessions that end are not reported
// nothing could be proven from it.
func (l *Loop) remember() {
	if !l.restored { // what an earlier worker left has not been looked at
		return
	}
	kept := evidence.Evidence{Instance: l.parts.PodUID}
	kept.State.LastActivity = l.status.State.LastActivity
	if l.status.Known && l.ears.reports != nil && l.memory.used.IsZero() {
		kept.State, kept.Ledger, kept.Started = l.status.State, l.memory.ledger, l.memory.started
	}
	if err := l.parts.Evidence.Save(kept); err != nil && !l.told.evidence {
		l.told.evidence = true
		l.parts.Logger.Warn("what is known cannot be kept for a restart of the sidecar", "error", err.Error())
	}
}

// restore goes on with the clock of an earlier worker if it is proven that nothing happened while nobody looked: the same
// start of the server, no session in any database since, and reports until now. Otherwise the clock starts anew.
func (l *Loop) restore(sample postgres.Sample) {
	if l.restored {
		return
	}
	l.restored = true
	kept, err := l.parts.Evidence.Load(l.parts.PodUID)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			l.parts.Logger.Warn("what an earlier sidecar knew cannot be read", "error", err.Error())
		}
		return
	}
	l.status.State.LastActivity = kept.State.LastActivity
	proven := kept.Started == sample.Started && kept.Ledger.Same(sample.Ledger) && l.ears.reports != nil && l.memory.used.IsZero()
	l.parts.Logger.Info("an earlier sidecar has left what it knew", "proven", proven, "idleSince", kept.State.IdleSince)
	if !proven || kept.State.IdleSince.IsZero() {
		return
	}
	l.status.State = idle.State{
		IdleSince: kept.State.IdleSince, EligibleSince: kept.State.EligibleSince,
		LookedUntil: time.Now(), LastActivity: kept.State.LastActivity,
	}
	l.memory.gap = false
}
