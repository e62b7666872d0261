package server

import (
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/control"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// idleFor is the time that is proven idle: it ends with the newest look, so that it stands still when the looks do.
func idleFor(s control.Status) (time.Duration, bool) {
	if !s.Known || s.State.IdleSince.IsZero() || s.SampledAt.IsZero() {
		return 0, false
	}
	return max(s.SampledAt.Sub(s.State.IdleSince), 0), true
}

// threshold is how long the cluster must be idle before it sleeps, if it ever does.
func threshold(s control.Status) (time.Duration, bool) {
	return s.Policy.Threshold, s.ViewKnown && s.Policy.Enabled && len(s.Problems) == 0
}

// listenerWanted tells whether the instance should listen to the control channel: a standby cannot, and the Cluster may
// name no database.
func listenerWanted(s control.Status, pod string) bool {
	if _, on := threshold(s); !on || s.View.CurrentPrimary != pod || s.View.ReplicaCluster {
		return false
	}
	if s.Policy.DatabaseSet {
		return s.Policy.Database != ""
	}
	return s.View.ApplicationDatabase != ""
}

// report is the status as /activity gives it. Without a status nothing is known, which a reader takes as in use.
func report(s *control.Status, cluster, pod string) activity.Report {
	r := activity.Report{Cluster: cluster, Pod: pod, Reason: string(idle.ReasonUnknown), Blockers: []string{string(idle.ReasonUnknown)}}
	if s == nil {
		return r
	}
	r.Known = s.Known
	if s.Known {
		tally := s.Tally
		r.Active, r.Sessions, r.IdleSince = tally.Active(), tally.ByState(), known(s.State.IdleSince)
	}
	r.SampledAt, r.LastActivity = known(s.SampledAt), known(s.State.LastActivity)
	r.Reason, r.Blockers = string(s.Decision.Reason), make([]string, 0, len(s.Decision.Blockers))
	for _, blocker := range s.Decision.Blockers {
		r.Blockers = append(r.Blockers, string(blocker))
	}
	return r
}

// known is nil for a time that is not known; times are shown in UTC.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// published is a copy that its author can no longer change.
func published(s control.Status) *control.Status {
	s.Decision.Blockers = slices.Clone(s.Decision.Blockers)
	return &s
}
