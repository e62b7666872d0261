package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// told remembers which Events were written, so that nothing repeats every two seconds.
type told struct {
	problems string
	blocked  map[idle.Reason]bool
	refused  string
	slots    bool
	evidence bool
}

// tell writes the Events that people need: a bad annotation once per set of problems, and what keeps an idle cluster awake
// once per reason and idle time. Only the primary speaks.
func (l *Loop) tell(ctx context.Context, now time.Time) {
	if l.status.View.CurrentPrimary != l.parts.Pod {
		return
	}
	l.tellProblems(ctx, now)
	l.tellSlots(ctx, now)
	if !l.status.Decision.ThresholdPassed {
		l.told.blocked = nil
		return
	}
	for _, reason := range l.status.Decision.Blockers {
		if l.told.blocked[reason] {
			continue
		}
		if l.told.blocked == nil {
			l.told.blocked = map[idle.Reason]bool{}
		}
		l.told.blocked[reason] = true
		l.parts.Kubernetes.Record(ctx, l.status.View, kubernetes.Event{
			Type: kubernetes.EventNormal, Reason: "SleepBlocked",
			Message: fmt.Sprintf("Idle since %s, but kept awake (%s): %s",
				l.status.State.IdleSince.UTC().Format(time.RFC3339), reason, reason.Description()),
		}, now)
	}
}

func (l *Loop) tellProblems(ctx context.Context, now time.Time) {
	lines := make([]string, 0, len(l.status.Problems))
	for _, problem := range l.status.Problems {
		lines = append(lines, problem.String())
	}
	message := strings.Join(lines, "; ")
	if message == l.told.problems {
		return
	}
	l.told.problems = message
	if message == "" {
		return
	}
	l.parts.Logger.Warn("the annotations are not understood; the feature is off", "problems", lines)
	l.parts.Kubernetes.Record(ctx, l.status.View, kubernetes.Event{
		Type: kubernetes.EventWarning, Reason: "InvalidAnnotation", Message: "Scale to zero is off: " + message,
	}, now)
}

// tellSlots warns of logical slots that nobody reads: they retain WAL, asleep as well as awake.
func (l *Loop) tellSlots(ctx context.Context, now time.Time) {
	if !l.status.Known {
		return
	}
	inactive := l.status.InactiveSlots != 0
	if inactive && !l.told.slots {
		l.parts.Kubernetes.Record(ctx, l.status.View, kubernetes.Event{
			Type: kubernetes.EventWarning, Reason: "InactiveLogicalSlot",
			Message: fmt.Sprintf("Logical replication slots that nobody reads, and that retain WAL: %d; they do not keep the cluster awake",
				l.status.InactiveSlots),
		}, now)
	}
	l.told.slots = inactive
}
