package server

import (
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/control"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// listenerWanted tells whether the instance should listen to the control channel: a standby cannot, the Cluster may name
// no database, and while the feature is off nobody wants to know.
func listenerWanted(s control.Status) bool {
	off := []idle.Reason{idle.ReasonNotPrimary, idle.ReasonDisabled, idle.ReasonInvalidAnnotation, idle.ReasonPluginNotListed}
	if !s.ViewKnown || s.View.ReplicaCluster || slices.ContainsFunc(s.Decision.Blockers, func(r idle.Reason) bool {
		return slices.Contains(off, r)
	}) {
		return false
	}
	if s.Policy.DatabaseSet {
		return s.Policy.Database != ""
	}
	return s.View.ApplicationDatabase != ""
}

// Report is what the instance last saw, for /activity. Before the first step nothing is known, which a reader takes as in
// use.
func (m *Metrics) Report(cluster, pod string) activity.Report {
	status, stepped := m.newest()
	if !stepped {
		unknown := string(idle.ReasonUnknown)
		return activity.Report{Cluster: cluster, Pod: pod, Requests: true, Reason: unknown, Blockers: []string{unknown}}
	}
	report := activity.Report{
		Cluster: cluster, Pod: pod, Known: status.Known,
		SampledAt: unlessZero(status.SampledAt), LastActivity: unlessZero(status.State.LastActivity),
		Reason: string(status.Decision.Reason), Blockers: make([]string, 0, len(status.Decision.Blockers)),
		Confirmed: status.Confirmed, Events: status.Reported, Requests: true,
		Rules: rulesOf(status),
	}
	if status.LastPeer.IsValid() {
		report.LastUnseenClient = status.LastPeer.String()
	}
	if status.Known {
		report.Active, report.Sessions = status.InUse, status.Tally.ByState()
		report.IdleSince, report.Due = unlessZero(status.State.IdleSince), unlessZero(status.Decision.Due)
		if since := status.State.IdleSince; !since.IsZero() {
			idleFor := m.now().Sub(since).Seconds()
			report.IdleForSeconds = &idleFor
		}
	}
	for _, reason := range status.Decision.Blockers {
		report.Blockers = append(report.Blockers, string(reason))
	}
	return report
}

// rulesOf is what explain needs to judge sessions as the worker does.
func rulesOf(status control.Status) activity.ReportedRules {
	mode := "connections"
	if status.Policy.Queries {
		mode = "queries"
	}
	return activity.ReportedRules{
		Enabled: status.Policy.Enabled, ThresholdSeconds: status.Policy.Threshold.Seconds(), Activity: mode,
		Ignore: status.View.Annotations[idle.KeyIgnore], Instances: status.View.Instances,
	}
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}
