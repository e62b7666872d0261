package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// row is the output of status for one cluster.
type row struct {
	result
	Since time.Time `json:"since,omitzero"`
	// IdleForSeconds is the primary's idle time; absent while it is in use, asleep or unknown.
	IdleForSeconds *float64 `json:"idleForSeconds,omitempty"`
	// ThresholdSeconds is absent if the annotations are invalid.
	ThresholdSeconds *float64 `json:"thresholdSeconds,omitempty"`
	BlockedBy        []string `json:"blockedBy"`
	// DozeBlockedBy is why the cluster does not doze although its annotations ask for it.
	DozeBlockedBy []string `json:"dozeBlockedBy,omitempty"`
	// WakesBy is when a keep-awake window opens that wakes the sleeping cluster before; absent without one.
	WakesBy time.Time `json:"wakesBy,omitzero"`
	// BackupDue is when a Backup is due for which the sleeping cluster is woken; absent without one.
	BackupDue time.Time `json:"backupDue,omitzero"`
	// Due is when the cluster would sleep, or hibernate if it dozes, if nothing happens; absent while unknown.
	Due *time.Time `json:"due,omitempty"`
	// Primary is the pod of the primary, even while the cluster sleeps.
	Primary string `json:"primary,omitempty"`
	// Wake is what wakes the cluster, by its annotations; absent if they are invalid.
	Wake string `json:"wake,omitempty"`
	// Defaults names the annotations that come from the Namespace, without their prefix, sorted.
	Defaults []string `json:"defaults,omitempty"`
	// Obstacle is why connections do not wake the cluster while it sleeps; absent if they do.
	Obstacle plan.Reason        `json:"obstacle,omitempty"`
	LastWake *contract.LastWake `json:"lastWake,omitempty"`
	saved
	// WouldHaveSleptSince is since when an observed cluster would be asleep; absent while it would not.
	WouldHaveSleptSince *time.Time `json:"wouldHaveSleptSince,omitempty"`
	// Note explains what could not be determined.
	Note string `json:"note,omitempty"`
}

// table is the output of status.
type table struct {
	Clusters []row `json:"clusters"`
	// Note explains what could not be determined for any cluster.
	Note string `json:"note,omitempty"`
}

func (p *program) statusCommand() *cobra.Command {
	which, watch := choice{}, false
	c := &cobra.Command{
		Use:   "status [CLUSTER | -l SELECTOR]",
		Short: "List the clusters: what sleeps, since when, and what keeps the others awake",
		Long: `List the clusters: what sleeps, since when, and what keeps the others awake.

SAVED is what the current sleep has saved: the CPU and memory that the PostgreSQL containers request, times the time without
pods. It is empty for a cluster that a person put to sleep, and for one that requests nothing.

With --watch, it keeps running and prints a row again when anything except its durations changes.`,
		ValidArgsFunction: p.complete(choice{}),
		Annotations:       map[string]string{annotationAlso: outputName + " " + outputWide},
		RunE: func(c *cobra.Command, arguments []string) error {
			err := which.parse(c)
			switch {
			case err != nil:
				return err
			case len(arguments) > 1 || len(arguments) == 1 && (which.everywhere || which.all || which.selector != ""):
				return usage("status takes one CLUSTER at most, and none with --all-namespaces, --all or --selector")
			case p.output == outputName && (watch || which.everywhere): // names of two namespaces may be the same
				return usage("--output %s cannot be combined with --watch or --all-namespaces", p.output)
			}
			a, err := p.connect()
			if err != nil {
				return err
			}
			which.name = strings.Join(arguments, "")
			text := newStatusText(which.everywhere, p.output == outputWide, colourful(p.Out, p.Getenv))
			if watch {
				return (&watcher{access: a, program: p, text: text, which: which}).watch(c.Context())
			}
			now := time.Now()
			answer, err := a.table(c.Context(), which, now)
			if err != nil {
				return err
			}
			if problem := answer.problem(); problem != "" {
				p.say("%s", problem)
			}
			if len(answer.Clusters) == 0 && p.printer == nil {
				p.say("%s", a.none(which))
				return nil
			}
			if p.output != outputName {
				return p.write(answer, text.of(answer.Clusters, now))
			}
			var names strings.Builder
			for _, r := range answer.Clusters {
				fmt.Fprintf(&names, "cluster.%s/%s\n", a.resource.Group, r.Cluster)
			}
			return p.write(answer, names.String())
		},
	}
	which.flags(c, describeSelector, describeEverywhere)
	c.Flags().BoolVar(&which.all, "all", false, "include clusters that do not list the plugin")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "keep running, and print what changes")
	return c
}

// problem says what could not be determined for any cluster.
func (t table) problem() string {
	if t.Note == "" {
		return ""
	}
	return "Cannot tell which instances are ready: " + t.Note
}

// none says that there is nothing to list.
func (a *access) none(which choice) string {
	in, lacks := "", " lists the plugin"
	if !which.everywhere {
		in = fmt.Sprintf(" in the namespace %q", a.namespace)
	}
	switch {
	case which.selector != "" && which.all:
		lacks = " matches the selector"
	case which.selector != "":
		lacks = " matches the selector and lists the plugin"
	case which.all:
		lacks = " exists"
	}
	return "No Cluster" + in + lacks + "."
}

// table returns the chosen clusters. A failure for one cluster is noted in its row and does not affect the others.
func (a *access) table(ctx context.Context, which choice, now time.Time) (table, error) {
	all, problem, err := a.look(ctx, which, now)
	if err != nil {
		return table{}, err
	}
	rows, asked := make([]row, len(all)), make([]instance, len(all))
	for i, s := range all {
		state := s.State(now)
		rows[i] = s.row(state, now)
		if s.asks(state) {
			asked[i] = instance{s.Cluster.Namespace, s.Cluster.Name, s.Cluster.Status.CurrentPrimary}
		}
	}
	for i, answered := range a.askAll(ctx, asked) {
		if answered.pod != "" {
			rows[i].take(answered)
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Cluster, b.Cluster))
	})
	answer := table{Clusters: rows}
	if problem != nil {
		answer.Note = problem.Error()
	}
	if err := ctx.Err(); err != nil {
		return table{}, fmt.Errorf("ask the sidecars: %w", err)
	}
	return answer, nil
}

// row returns what the Cluster and its pods show.
func (s seen) row(state clusterstate.State, now time.Time) row {
	r := row{
		result: s.result(now), Since: s.since(state, now), BlockedBy: []string{},
		Primary: s.Cluster.Status.CurrentPrimary, saved: s.saved(state, now), Defaults: defaultsOf(s.Cluster.Annotations),
	}
	switch {
	case !s.View.Listed:
	case s.View.Problems == 0:
		threshold := s.View.Policy.Threshold.Seconds()
		r.ThresholdSeconds, r.Wake = &threshold, s.View.Policy.Wake()
	default:
		r.BlockedBy = append(r.BlockedBy, string(idle.ReasonInvalidAnnotation))
	}
	if state == clusterstate.Disabled && s.View.Problems == 0 {
		r.BlockedBy = append(r.BlockedBy, string(idle.ReasonDisabled))
	}
	if value, there := s.Cluster.Annotations[contract.AnnotationLastWake]; there {
		if wake, err := contract.ParseLastWake(value); err == nil {
			r.LastWake = &wake
		} else {
			r.note("the annotation " + contract.AnnotationLastWake + " is invalid")
		}
	}
	switch {
	case state == clusterstate.Asleep || state == clusterstate.AsleepByHand:
		r.Obstacle = s.View.Obstacle()
	case state == clusterstate.Dozing && s.View.Deleting:
		r.Obstacle = plan.ReasonGone
	}
	if since := s.DozingSince(); state == clusterstate.Dozing && s.dozes() && !since.IsZero() {
		r.Due = new(since.Add(s.View.Policy.Threshold - s.View.Policy.Doze))
	}
	asleep := state == clusterstate.Dozing || state == clusterstate.Asleep
	if asleep && s.View.ObstacleTo(contract.CauseWindow) == "" {
		r.WakesBy = s.View.Policy.NextOpening(now)
	}
	if asleep && (s.View.Policy.OnBackup || s.View.Policy.WakesByAge()) && s.View.ObstacleTo(contract.CauseBackup) == "" {
		r.BackupDue = s.backupDue()
		if s.unscheduled != nil && s.View.Policy.OnBackup {
			r.note(s.unscheduled.Error())
		}
	}
	// The sidecar may not answer, or be too old to know the feature.
	if primary := s.Primary(); !s.View.HibernationOn && s.View.Listed && s.dozes() && primary != nil &&
		!slices.ContainsFunc(primary.Spec.Containers, withdrawsReadiness) {
		r.DozeBlockedBy = []string{string(idle.ReasonPodMadeBefore)}
	}
	if s.View.HibernationOn && s.View.VolumesAtRisk {
		r.note("not woken now: " + plan.VolumesAtRisk)
	}
	if (state == clusterstate.Awake || state == clusterstate.Observed) && s.PodsKnown && !slices.ContainsFunc(s.Pods, clusterstate.Ready) {
		r.note("no instance is ready")
	}
	return r
}

// backupDue returns when the first Backup is due; zero: never.
func (s seen) backupDue() (first time.Time) {
	policy := s.View.Policy
	if last := plan.BackupsOf(s.Cluster, policy, nil).Last; policy.WakesByAge() && !last.IsZero() {
		first = last.Add(policy.BackupMaxAge).UTC()
	}
	for _, slot := range plan.SlotsOf(s.Cluster, s.schedules) {
		if policy.OnBackup && (first.IsZero() || slot.At.Before(first)) {
			first = slot.At
		}
	}
	return first
}

// defaultsOf names the annotations that come from the Namespace, not from the Cluster itself.
func defaultsOf(annotations map[string]string) []string {
	var names []string
	for key := range contract.Effective(annotations) {
		if _, own := annotations[key]; !own {
			names = append(names, strings.TrimPrefix(key, contract.Prefix))
		}
	}
	slices.Sort(names)
	return names
}

// take adds the report of the primary's sidecar.
func (r *row) take(a answer) {
	if a.err != nil {
		r.note(fmt.Sprintf("cannot query the sidecar of %s: %s", a.pod, because(a.err)))
		return
	}
	r.IdleForSeconds, r.Due = a.report.IdleForSeconds, a.report.SleepDue
	if r.State == clusterstate.Observed && a.report.WhatIf != nil {
		r.WouldHaveSleptSince = a.report.WhatIf.Own.Since
	}
	r.BlockedBy = union(r.BlockedBy, a.report.Blockers...)
	r.DozeBlockedBy = union(r.DozeBlockedBy, a.report.DozeBlockers...)
}

// union adds the values that the list does not have yet.
func union(list []string, values ...string) []string {
	for _, value := range values {
		if !slices.Contains(list, value) {
			list = append(list, value)
		}
	}
	return list
}

// remarks returns what the table says of the cluster besides its columns.
func (r *row) remarks() string {
	var remarks []string
	if r.State == clusterstate.Dozing && r.Due != nil {
		remarks = append(remarks, "hibernates at "+r.Due.Format(time.RFC3339))
	}
	if r.WouldHaveSleptSince != nil {
		remarks = append(remarks, "would have slept since "+r.WouldHaveSleptSince.Format(time.RFC3339))
	}
	if r.State == clusterstate.Asleep && r.Obstacle != "" && r.Obstacle != plan.ReasonMaintenance { // which has a note
		remarks = append(remarks, "connections do not wake it: "+string(r.Obstacle))
	}
	if len(r.DozeBlockedBy) != 0 {
		remarks = append(remarks, "cannot doze: "+strings.Join(r.DozeBlockedBy, ","))
	}
	if r.Note != "" {
		remarks = append(remarks, r.Note)
	}
	return strings.Join(remarks, "; ")
}

func (r *row) note(text string) { r.Note = strings.TrimPrefix(r.Note+"; "+text, "; ") }

// statusText makes text of clusters. Columns never become narrower, for the rows that follow.
type statusText struct {
	text strings.Builder
	out  interface {
		io.Writer
		Flush() error
	}
	everywhere, wide, colours bool
	// goesOn is set if more rows may follow: the columns then leave room for them.
	goesOn bool
	// notes is set if there is a column for notes, begun once the header has been written.
	notes, begun bool
}

func newStatusText(everywhere, wide, colours bool) *statusText {
	t := &statusText{everywhere: everywhere, wide: wide, colours: colours}
	t.out = printers.GetNewTabWriter(&t.text)
	return t
}

// of has a line for each cluster, and the first time the header.
func (t *statusText) of(rows []row, now time.Time) string {
	t.text.Reset()
	if !t.begun {
		t.begun = true
		t.notes = t.goesOn || slices.ContainsFunc(rows, func(r row) bool { return r.remarks() != "" })
		head := row{result: result{Namespace: "NAMESPACE", Cluster: "NAME", State: "STATE"}}
		t.line(head, now, func(c column) string { return c.head })
	}
	for _, r := range rows {
		t.line(r, now, func(c column) string { return cell(c.value) })
	}
	_ = t.out.Flush()
	return t.text.String()
}

// column is a column of the table with its value in a row.
type column struct{ head, value string }

// line writes a row; the state, which may be coloured, comes after the cluster's name.
func (t *statusText) line(r row, now time.Time, text func(column) string) {
	state := string(r.State)
	if t.goesOn {
		state = fmt.Sprintf("%-*s", len(clusterstate.AsleepByHand), state) // the longest state
	}
	if t.everywhere {
		_, _ = fmt.Fprintf(t.out, "%s\t", cell(r.Namespace))
	}
	_, _ = fmt.Fprintf(t.out, "%s\t%s", cell(r.Cluster), paint(t.colours, r.State, state))
	columns := []column{
		{"SINCE", ago(r.Since, now)}, {"IDLE FOR", long(r.IdleForSeconds)}, {"THRESHOLD", long(r.ThresholdSeconds)},
		{"BLOCKED BY", strings.Join(r.BlockedBy, ",")}, {"LAST WOKEN BY", woken(r.LastWake, now)}, {"SAVED", r.hours()},
	}
	if t.wide {
		due := ""
		if r.Due != nil {
			due = duration.HumanDuration(max(r.Due.Sub(now), 0))
		}
		columns = append(columns, column{"PRIMARY", r.Primary}, column{"DUE IN", due}, column{"WAKE", r.Wake},
			column{"DEFAULTS", strings.Join(r.Defaults, ",")})
	}
	if t.notes {
		columns = append(columns, column{"NOTE", r.remarks()})
	}
	for _, c := range columns {
		_, _ = fmt.Fprint(t.out, "\t", text(c))
	}
	_, _ = fmt.Fprintln(t.out)
}

func woken(w *contract.LastWake, now time.Time) string {
	if w == nil {
		return ""
	}
	who := w.By
	if w.User != "" {
		who += fmt.Sprintf(" (%s@%s)", w.User, cmp.Or(w.Database, w.User))
	}
	return who + ", " + ago(w.At, now)
}
