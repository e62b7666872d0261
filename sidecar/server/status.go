package server

import (
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// IsInstance reports whether an instance of the cluster has the address, according to the Cluster's newest status.
func (m *Metrics) IsInstance(address netip.Addr) bool {
	status, _ := m.newest()
	for _, instance := range status.View.Addresses {
		if instance == address {
			return true
		}
	}
	return false
}

// Report returns the instance's state for /activity. Before the first step it is unknown, which readers treat as in
// use.
func (m *Metrics) Report(cluster, pod string) contract.Report {
	status, ok := m.newest()
	if !ok {
		unknown := string(idle.ReasonUnknown)
		return contract.Report{Cluster: cluster, Pod: pod, AcceptsSleepRequests: true, SamplesOnDemand: true, Reason: unknown, Blockers: []string{unknown}}
	}
	report := contract.Report{
		Cluster: cluster, Pod: pod, Known: status.Known,
		SampledAt: unlessZero(status.SampledAt), LastActivity: unlessZero(status.State.LastActivity),
		DecidedAt: unlessZero(status.DecidedAt), Reason: string(status.Decision.Reason),
		Blockers:     make([]string, 0, len(status.Decision.Blockers)),
		SocketEvents: status.Reported, AcceptsSleepRequests: true, SamplesOnDemand: true,
		Rules: status.Rules(), IgnoredPods: status.IgnoredPods(),
		UnroutableServices: status.View.Annotations[contract.AnnotationUnroutableServices],
	}
	report.Unused = !status.State.Unused.IsZero()
	if status.LastPeer.IsValid() {
		report.LastUnseenClient = status.LastPeer.String()
	}
	if status.Known {
		report.Active, report.Sessions, report.Scheduler = status.InUse, status.Tally.ByState(), status.Scheduler
		report.ServerBlockers = words(status.ServerBlockers)
		report.IdleSince, report.SleepDue = unlessZero(status.State.IdleSince), unlessZero(status.Decision.Due)
		if since := status.State.IdleSince; !since.IsZero() {
			idleFor := m.now().Sub(since).Seconds()
			report.IdleForSeconds = &idleFor
		}
	}
	report.Blockers = append(report.Blockers, words(status.Decision.Blockers)...)
	report.DozeBlockers = words(status.Decision.DozeBlockers)
	counted := status.WhatIf
	if status.View.Dozing && status.View.Stopped != "" {
		counted = counted.Asleep(m.now())
	}
	report.WhatIf = counted.Report()
	return report
}

// words converts reasons to the report's strings.
func words(reasons []idle.Reason) []string {
	words := make([]string, 0, len(reasons))
	for _, reason := range reasons {
		words = append(words, string(reason))
	}
	return words
}

func unlessZero(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}
