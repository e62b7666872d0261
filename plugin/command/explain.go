package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// explanation is the output of explain.
type explanation struct {
	row
	// Reason is why the cluster was put to sleep; empty unless it sleeps.
	Reason string `json:"reason,omitempty"`
	// Blockers are the primary's blockers, with descriptions.
	Blockers []blocker `json:"blockers"`
	// DozeBlockers are the reasons why it does not doze although its annotations ask for it, with descriptions.
	DozeBlockers []blocker `json:"dozeBlockers,omitempty"`
	// Problems are the invalid annotations.
	Problems []string `json:"problems"`
	// Rules are the annotations in force, without their prefix.
	Rules map[string]string `json:"rules"`
	// Instances are all instances with their reports.
	Instances []told `json:"instances"`
}

type blocker struct {
	Reason      string `json:"reason"`
	Description string `json:"description"`
}

// told is the report of an instance's sidecar, or the problem in getting it.
type told struct {
	Pod     string           `json:"pod"`
	Primary bool             `json:"primary"`
	Report  *contract.Report `json:"report,omitempty"`
	Problem string           `json:"problem,omitempty"`
}

func (p *program) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain CLUSTER", Short: "Say what keeps a cluster awake, by what rules, and when it would sleep",
		Args: exactly("CLUSTER"), ValidArgsFunction: p.complete(choice{}),
		RunE: func(c *cobra.Command, arguments []string) error {
			a, err := p.connect()
			if err != nil {
				return err
			}
			now := time.Now()
			all, problem, err := a.look(c.Context(), choice{name: arguments[0]}, now)
			if err != nil {
				return err
			}
			e := a.explained(c.Context(), all[0], problem, now)
			if err := c.Context().Err(); err != nil {
				return fmt.Errorf("ask the sidecars: %w", err)
			}
			return p.write(e, e.text(colourful(p.Out, p.Getenv), now))
		},
	}
}

// explained explains a cluster. problem says why its pods could not be read; nil if they were.
func (a *access) explained(ctx context.Context, s seen, problem error, now time.Time) *explanation {
	cluster, state := s.Cluster, s.State(now)
	e := &explanation{row: s.row(state, now), Blockers: []blocker{}, Rules: map[string]string{}, Instances: []told{}}
	if problem != nil {
		e.note(problem.Error())
	}
	_, problems := idle.ParsePolicy(cluster.Annotations, now)
	e.Problems = texts(problems)
	effective := contract.Effective(cluster.Annotations)
	for _, key := range []string{
		contract.AnnotationEnabled, contract.AnnotationInactivityMinutes, contract.AnnotationDozeMinutes, contract.AnnotationActivity, contract.AnnotationIgnore, contract.AnnotationKeepAwake, contract.AnnotationKeepAwakeUntil, contract.AnnotationWake,
		contract.AnnotationGatewayAddress, contract.AnnotationSidecarUpdate, contract.AnnotationPoolers,
		contract.AnnotationBackupMaxAge, contract.AnnotationDatabase, contract.AnnotationSleepRequested,
		contract.AnnotationWakeRequested, contract.AnnotationUnroutableServices,
	} {
		if value, there := effective[key]; there {
			e.Rules[strings.TrimPrefix(key, contract.Prefix)] = value
		}
	}
	if state == clusterstate.Asleep || state == clusterstate.AsleepByHand {
		e.Reason = cluster.Annotations[contract.AnnotationAsleepReason]
		return e
	}
	if state == clusterstate.Dozing {
		return e
	}
	names := slices.Clone(cluster.Status.InstanceNames)
	for i := range s.Pods {
		names = union(names, s.Pods[i].Name)
	}
	slices.Sort(names)
	asked := make([]instance, 0, len(names))
	for _, name := range names {
		asked = append(asked, instance{cluster.Namespace, cluster.Name, name})
	}
	for i, answered := range a.askAll(ctx, asked) {
		t := told{Pod: names[i], Primary: names[i] == cluster.Status.CurrentPrimary}
		if t.Primary && !s.View.HibernationOn { // what its sidecar says is about an awake cluster
			e.take(answered)
		}
		if answered.err != nil {
			t.Problem = because(answered.err)
		} else {
			t.Report = &answered.report
		}
		e.Instances = append(e.Instances, t)
	}
	e.Blockers = described(e.BlockedBy)
	e.DozeBlockers = described(e.DozeBlockedBy)
	return e
}

// problem returns why the sidecar in a pod has not answered; empty if it has, or was not asked.
func (e *explanation) problem(pod string) string {
	for _, t := range e.Instances {
		if t.Pod == pod {
			return t.Problem
		}
	}
	return ""
}

// described describes reasons; a newer sidecar may have some that are unknown here.
func described(reasons []string) []blocker {
	blockers := []blocker{}
	for _, reason := range reasons {
		blockers = append(blockers, blocker{reason, cmp.Or(idle.Reason(reason).Description(),
			"this program is older than the sidecar and does not know the reason")})
	}
	return blockers
}

func texts(problems []idle.Problem) []string {
	texts := []string{}
	for _, problem := range problems {
		texts = append(texts, problem.String())
	}
	return texts
}

func (e *explanation) text(colourful bool, now time.Time) string {
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 8, 3, ' ', 0)
	p := func(format string, arguments ...any) { _, _ = io.WriteString(out, fmt.Sprintf(format, arguments...)) }
	p("Cluster %s/%s is %s", e.Namespace, e.Cluster, paint(colourful, e.State, string(e.State)))
	if !e.Since.IsZero() {
		p(", since %s (%s)", e.Since.Format(time.RFC3339), ago(e.Since, now))
	}
	p(".\n")
	e.writeSleep(p)
	for _, problem := range e.Problems {
		p("Invalid: %s.\n", cell(problem))
	}
	for _, b := range e.Blockers {
		p("Awake, because %s (%s).\n", b.Description, cell(b.Reason))
	}
	for _, b := range e.DozeBlockers {
		p("It does not doze for now, because %s (%s).\n", b.Description, cell(b.Reason))
	}
	for _, t := range e.Instances {
		if t.Primary && t.Report != nil && t.Report.IgnoredPods != "" {
			p("Every pod is probably ignored: %s.\n", cell(t.Report.IgnoredPods))
		}
	}
	e.writeWhatIf(p)
	if e.IdleForSeconds != nil && e.ThresholdSeconds != nil {
		p("The primary has been idle for %s; the threshold is %s.\n", long(e.IdleForSeconds), long(e.ThresholdSeconds))
	}
	switch {
	case e.Due == nil || e.State == clusterstate.Dozing:
	case e.Due.After(now):
		p("If it stays idle, the threshold is reached at %s.\n", e.Due.Format(time.RFC3339))
	default:
		p("The threshold was reached at %s.\n", e.Due.Format(time.RFC3339))
	}
	if !e.WakesBy.IsZero() {
		p("A keep-awake window opens at %s, and the plugin wakes the cluster before.\n", e.WakesBy.UTC().Format(time.RFC3339))
	}
	if !e.BackupDue.IsZero() {
		p("A Backup is due at %s, and the plugin wakes the cluster for it.\n", e.BackupDue.Format(time.RFC3339))
	}
	if e.LastWake != nil {
		through := ""
		if e.LastWake.Service != "" {
			through = ", through Service " + cell(e.LastWake.Service)
		}
		p("Last woken by %s%s.\n", cell(woken(e.LastWake, now)), through)
	}
	if e.Note != "" {
		p("Note: %s.\n", cell(e.Note))
	}
	if len(e.Rules) != 0 {
		p("\nANNOTATION\tVALUE\n")
	}
	for _, key := range slices.Sorted(maps.Keys(e.Rules)) {
		from := ""
		if slices.Contains(e.Defaults, key) {
			from = " (from the Namespace)"
		}
		p("%s\t%s%s\n", key, cell(e.Rules[key]), from)
	}
	e.writeInstances(p, now)
	_ = out.Flush()
	return text.String()
}

// writeSleep explains why the cluster sleeps and what wakes it.
func (e *explanation) writeSleep(p func(string, ...any)) {
	if e.State == clusterstate.Dozing {
		p("PostgreSQL is stopped, and its pod is kept.\n")
		if e.Due != nil {
			p("If nothing happens, it hibernates at %s.\n", e.Due.Format(time.RFC3339))
		}
	} else if e.State != clusterstate.Asleep && e.State != clusterstate.AsleepByHand {
		return
	}
	if e.Reason != "" {
		p("It was put to sleep: %s.\n", cell(e.Reason))
	}
	if e.Obstacle == "" {
		p("A client that connects wakes it.\n")
		return
	}
	if e.Obstacle == plan.ReasonMaintenance {
		p("Nothing wakes it now (%s).\n", e.Obstacle)
		return
	}
	p("Connections do not wake it (%s). To wake it: %s wake -n %s %s\n", e.Obstacle, called, e.Namespace, e.Cluster)
}

// writeWhatIf writes how an observed cluster would have slept.
func (e *explanation) writeWhatIf(p func(string, ...any)) {
	i := slices.IndexFunc(e.Instances, func(t told) bool { return t.Primary && t.Report != nil && t.Report.WhatIf != nil })
	if i < 0 || e.State != clusterstate.Observed {
		return
	}
	observed := e.Instances[i].Report.WhatIf
	p("It has been observed for %s.\n\nTHRESHOLD\tWOULD HAVE SLEPT\tTIMES\n", long(&observed.ObservedSeconds))
	line := func(note string, s contract.ReportedSleeps) {
		p("%s%s\t%s\t%d\n", long(&s.ThresholdSeconds), note, share(s.Seconds/max(observed.ObservedSeconds, s.Seconds, 1)), s.Count)
	}
	for _, s := range observed.Sleeps {
		line("", s)
	}
	line(" (its own)", observed.Own)
	p("\n")
}

func (e *explanation) writeInstances(p func(string, ...any), now time.Time) {
	if len(e.Instances) == 0 {
		return
	}
	p("\nINSTANCE\tROLE\tIN USE\tIDLE FOR\tLAST ACTIVITY\tSESSIONS\tNOTE\n")
	for _, t := range e.Instances {
		role := "standby"
		if t.Primary {
			role = "primary"
		}
		if t.Report == nil {
			p("%s\t%s\t%s\t-\t-\t-\t%s\n", t.Pod, role, "unknown", cell(t.Problem))
			continue
		}
		use, note := "unknown", ""
		if t.Report.Known {
			use = map[bool]string{true: "yes", false: "no"}[t.Report.Active]
		}
		if t.Report.LastUnseenClient != "" {
			note = "newest short session: from " + t.Report.LastUnseenClient
		}
		p("%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.Pod, role, use, cell(long(t.Report.IdleForSeconds)),
			cell(ago(ptr.Deref(t.Report.LastActivity, time.Time{}), now)), cell(sessions(t.Report.Sessions)), cell(note))
	}
	p("\nTheir sessions, and which of them count:\n")
	for _, t := range e.Instances {
		p("  kubectl exec -n %s %s -c %s -- /sidecar explain\n", e.Namespace, t.Pod, container)
	}
}

func sessions(by map[string]int) string {
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(by)) {
		if by[state] != 0 {
			parts = append(parts, fmt.Sprintf("%d %s", by[state], state))
		}
	}
	return strings.Join(parts, ", ")
}
