package control

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// Status is the state after a step.
type Status struct {
	// Pod is the name of this instance.
	Pod string
	// Status is the monitor's.
	monitor.Status
	// View is the newest known state of the Cluster, and ViewKnown reports whether there is one.
	View      kubernetes.View
	ViewKnown bool
	// Policy and Problems are parsed from its annotations.
	Policy   idle.Policy
	Problems []idle.Problem
	// State and Decision are the newest of package idle, DecidedAt is their time.
	State     idle.State
	Decision  idle.Decision
	DecidedAt time.Time
	// WhatIf is how the cluster would have slept at other thresholds.
	WhatIf idle.WhatIf
	// Returning is the session for which clients_return keeps the cluster awake, zero if there is none.
	Returning activity.Terminable
	// InUse is whether the instance was in use at the newest sample.
	InUse bool

	quietUntil time.Time // until then no session is held
	served     served
}

// settings returns what the monitor observes, and how.
func (s *Status) settings() monitor.Settings {
	v, policy := s.View, s.Policy
	others := maps.Clone(v.Addresses)
	delete(others, s.Pod)
	return monitor.Settings{
		Rules:         activity.Rules{Instances: v.Instances, Ignore: policy.Ignore, Queries: policy.Queries},
		Specification: specification(v),
		Others:        slices.Collect(maps.Values(others)),
		Connect:       s.mayConnect(), Quiet: v.Restarting, QuietUntil: s.quietUntil, Database: s.channelDatabase(),
	}
}

// mayConnect reports whether database sessions may be opened. It ignores the Cluster's health, so that the idle clock
// continues while an unhealthy phase forbids sleep.
func (s *Status) mayConnect() bool {
	v := s.View
	return s.ViewKnown && s.Policy.Watches() && len(s.Problems) == 0 && v.PluginListed && !v.Hibernating && !v.Dozing
}

// Listens reports whether the instance is to listen to the control channel.
func (s *Status) Listens() bool { return s.mayConnect() && s.channelDatabase() != "" }

// channelDatabase returns the database in which to listen on the control channel, or "". A standby does not permit
// LISTEN.
func (s *Status) channelDatabase() string {
	v := s.View
	if v.CurrentPrimary != s.Pod || v.ReplicaCluster {
		return ""
	}
	if s.Policy.DatabaseSet {
		return s.Policy.Database
	}
	return v.ApplicationDatabase
}

// mayDoze reports whether the settings allow the cluster to doze.
func (s *Status) mayDoze() bool {
	v, policy := s.View, s.Policy
	return policy.Enabled && len(s.Problems) == 0 && policy.Doze != 0 && !policy.Manual && v.PluginListed &&
		!v.FenceApplied && s.siblingCount() == 0
}

// annotations returns the Cluster's annotations. A client that requests that a dozing cluster hibernate, such as the
// plugin, may have another clock, so a request made since the doze began counts as one of now.
func annotations(v kubernetes.View, now time.Time) map[string]string {
	if !requestedSince(v) {
		return v.Annotations
	}
	changed := maps.Clone(v.Annotations)
	changed[contract.AnnotationSleepRequested] = now.UTC().Format(time.RFC3339)
	return changed
}

// mayHibernateDozing reports whether nothing but the doze itself keeps the dozing cluster from hibernation.
func (s *Status) mayHibernateDozing(now time.Time) bool {
	return !s.Policy.KeepsAwake(now) && !slices.ContainsFunc(s.View.Blockers(s.Pod), func(reason idle.Reason) bool {
		return reason != idle.ReasonDozing && reason != idle.ReasonUnhealthy
	})
}

// requestedSince reports whether a request that the dozing cluster hibernates is newer than its doze. Both times are in
// whole seconds.
func requestedSince(v kubernetes.View) bool {
	requested, err := time.Parse(time.RFC3339, v.Annotations[contract.AnnotationSleepRequested])
	return err == nil && v.Dozing && !requested.Before(v.DozingSince)
}

// requestedDozing reports whether the dozing cluster is to hibernate because that was requested.
func (s *Status) requestedDozing() bool {
	return requestedSince(s.View) && !s.Policy.SleepRequested.IsZero()
}

// specification identifies what the operator and the plugins make an instance of.
func specification(v kubernetes.View) string {
	return strconv.FormatInt(v.Generation, 10) + " " + v.Operator
}

// observed converts the newest decision for the machine. Asking the other instances is part of an attempt.
func (s *Status) observed() sleep.Observed {
	d := s.Decision
	o := sleep.Observed{InUse: s.InUse, IdleRestarted: s.InUse || !s.Known, Doze: d.Action == idle.ActionDoze}
	if d.Action == idle.ActionNone {
		o.Blocker = d.Reason
		o.IdleRestarted = o.IdleRestarted || !d.ThresholdPassed // for example, another instance was used
	}
	return o
}

// wokenAt returns when the cluster was woken, so that it sleeps soon if nobody uses it. It is zero if a person or a
// request woke it, if the primary has changed or a session may have been missed since, or if an instance that has
// served since is gone, which alone knew its sessions. A wake by hand leaves the annotation of the last sleep, or
// removes that of the last wake.
func (s *Status) wokenAt() time.Time {
	view := s.View
	if _, asleep := view.Annotations[contract.AnnotationAsleepSince]; asleep || s.SessionMissed || s.served.replaced {
		return time.Time{}
	}
	wake, err := contract.ParseLastWake(view.Annotations[contract.AnnotationLastWake])
	if err != nil || wake.Cause == contract.CauseRequest || view.PrimarySince.After(wake.At) {
		return time.Time{}
	}
	return wake.At
}

// postpone changes the decision while an attempt is under way, or while the next one must wait: its reason becomes why
// the last attempt was aborted, if it was.
func (s *Status) postpone(machine sleep.Machine, aborted idle.Reason) {
	attempting := machine.Phase().Attempting()
	if s.Decision.Action == idle.ActionNone || !machine.Waits() && !attempting {
		return
	}
	if aborted != "" {
		s.Decision.Reason, s.Decision.Blockers = aborted, []idle.Reason{aborted}
	} else if attempting {
		s.Decision.Reason, s.Decision.Blockers = idle.ReasonIdle, nil
	}
	s.Decision.Action = idle.ActionNone
}

// logUse logs why the wake does not count as unused.
func (s *Status) logUse(seen idle.Observation, logger *slog.Logger) {
	if later(s.State.Unused, s.State.Undecided).IsZero() {
		logger.Info("the wake counts as used", "woken", seen.Woken, "lastActivity", s.State.LastActivity, "peer", s.LastPeer,
			"reported", seen.Reported, "gap", seen.Gap, "sessionMissed", s.SessionMissed, "elsewhere", seen.Elsewhere.Used)
	}
}

// sleepView returns what the machine needs to know about the newest state of the Cluster.
func (s *Status) sleepView(p *pod) sleep.View {
	v := s.View
	marked := !v.DozingSince.IsZero() || v.Stopped != "" || v.RestartFailed != ""
	return sleep.View{
		Primary: v.CurrentPrimary == s.Pod && v.TargetPrimary == s.Pod, PrimarySince: v.PrimarySince,
		Healthy: v.Healthy, NotReady: v.Hibernation != "" || !slices.Contains(v.Ready, s.Pod),
		Manual:        s.Policy.ByPeopleOnly(),
		HibernationOn: v.Hibernating, OwnsHibernation: v.Ours, HibernationBegun: v.Hibernating && !v.Untouched(),
		Announced: v.Annotations[contract.AnnotationAnnounced], Acknowledged: v.Annotations[contract.AnnotationGatewayReady],
		Holding: v.Annotations[contract.AnnotationGatewayHolding],
		Fenced:  v.Dozing, Stopped: v.Stopped == p.PodUID,
		DozeEnding: !v.Dozing && (marked && !v.ForeignMarks || p.restartPending), ForeignMarks: v.ForeignMarks,
		MayDoze: s.mayDoze(),
	}
}

// cause says why an idle cluster hibernates now.
func (s *Status) cause(fenced string) string {
	v, decision := s.View, s.Decision
	switch {
	case v.Dozing && specification(v) != fenced:
		return ", because its pod, its specification, its image, the operator or a plugin has changed, or a restart was requested"
	case v.Dozing && s.requestedDozing(), !v.Dozing && !decision.ThresholdPassed:
		return ", on request"
	case !v.Dozing && slices.Equal(decision.DozeBlockers, []idle.Reason{idle.ReasonGrowthPending}):
		return ", because its pod still has the small requests of its last doze"
	default:
		return ", for the threshold of " + s.Policy.Threshold.String()
	}
}

// siblingCount returns the number of other instances.
func (s *Status) siblingCount() int {
	count := 0
	for _, name := range s.View.Instances {
		if name != s.Pod {
			count++
		}
	}
	return count
}

// Rules returns the rules by which this instance judges sessions.
func (s *Status) Rules() contract.ReportedRules {
	rules := contract.ReportedRules{
		Enabled: s.Policy.Watches(), Observed: s.Policy.Observed, ThresholdSeconds: s.Policy.Threshold.Seconds(),
		Activity: contract.ActivityConnections,
		Ignore:   contract.Effective(s.View.Annotations)[contract.AnnotationIgnore], Instances: s.View.Instances,
	}
	if s.Policy.Queries {
		rules.Activity = contract.ActivityQueries
	}
	for name, address := range s.View.Addresses {
		if name != s.Pod {
			rules.Addresses = append(rules.Addresses, address)
		}
	}
	slices.SortFunc(rules.Addresses, netip.Addr.Compare)
	return rules
}

// IgnoredPods names an item of the ignore annotation that covers the address of an instance, and so probably every pod;
// "" if none does.
func (s *Status) IgnoredPods() string {
	for _, name := range s.View.Instances {
		address, ok := s.View.Addresses[name]
		for _, item := range s.Policy.Ignore {
			if ok && item.MatchesUnseen(address) {
				return fmt.Sprintf("client=%s contains %s, the address of %s", item.Client, address, name)
			}
		}
	}
	return ""
}
