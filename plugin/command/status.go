package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	wakeslices "github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// row is what status says of a cluster.
type row struct {
	Namespace string     `json:"namespace"`
	Cluster   string     `json:"cluster"`
	State     State      `json:"state"`
	Since     *time.Time `json:"since,omitempty"`
	// IdleForSeconds is that of the primary; absent while it is in use, or asleep, or not known.
	IdleForSeconds *float64 `json:"idleForSeconds,omitempty"`
	// ThresholdSeconds is absent where the annotations are not understood.
	ThresholdSeconds *float64       `json:"thresholdSeconds,omitempty"`
	BlockedBy        []string       `json:"blockedBy"`
	LastWake         *plan.LastWake `json:"lastWake,omitempty"`
	saved
	// Note says what could not be found out, and why.
	Note string `json:"note,omitempty"`
}

// table is the answer of status.
type table struct {
	Clusters []row `json:"clusters"`
	// Note says what could not be found out of any of them, and why.
	Note string `json:"note,omitempty"`
}

func (p *program) statusCommand() *cobra.Command {
	everywhere := false
	c := &cobra.Command{
		Use: "status", Short: "List the clusters: what sleeps, since when, and what keeps the others awake",
		Long: `List the clusters: what sleeps, since when, and what keeps the others awake.

SAVED is by the present sleep: what the cluster's PostgreSQL containers request of CPU and memory, times how long no pod has
been there. It is empty for a cluster that a person put to sleep, and for one that requests nothing.`,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := p.connect()
			if err != nil {
				return err
			}
			namespace := a.namespace
			if everywhere {
				namespace = ""
			}
			now := time.Now()
			answer, err := a.table(c.Context(), namespace, now)
			if err != nil {
				return err
			}
			rows := answer.Clusters
			if answer.Note != "" {
				p.say("Which instances are ready, and since when, is not known: %s", answer.Note)
			}
			if len(rows) == 0 && p.output == "" {
				p.say("No Cluster lists the plugin%s.", map[bool]string{false: fmt.Sprintf(" in the namespace %q", namespace)}[everywhere])
				return nil
			}
			return p.write(answer, func(w io.Writer) {
				writeRows(w, rows, everywhere, colourful(p.Out, p.Getenv), now)
			})
		},
	}
	c.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "the clusters of all namespaces")
	return c
}

// table has the clusters of a namespace, or of all. What cannot be found out of one is noted and fails no other.
func (a *access) table(ctx context.Context, namespace string, now time.Time) (table, error) {
	clusters, err := a.clusters(ctx, namespace)
	if err != nil {
		return table{}, err
	}
	pods, problem := a.pods(ctx, namespace, "")
	of := map[types.NamespacedName][]corev1.Pod{}
	for i := range pods {
		key := types.NamespacedName{Namespace: pods[i].Namespace, Name: pods[i].Labels[wakeslices.LabelCluster]}
		of[key] = append(of[key], pods[i])
	}
	rows := make([]row, 0, len(clusters))
	var asked []instance
	var askers []int
	for i := range clusters {
		s := see(&clusters[i], of[types.NamespacedName{Namespace: clusters[i].Namespace, Name: clusters[i].Name}], problem == nil, now)
		state := s.state(now)
		rows = append(rows, s.row(state, now))
		if s.asks(state) {
			asked, askers = append(asked, s.instance(clusters[i].Status.CurrentPrimary)), append(askers, i)
		}
	}
	for n, answered := range a.askAll(ctx, asked) {
		rows[askers[n]].take(asked[n], answered)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Cluster, b.Cluster))
	})
	answer := table{Clusters: rows}
	if problem != nil {
		answer.Note = problem.Error()
	}
	return answer, nil
}

// row is what the Cluster and its pods say.
func (s seen) row(state State, now time.Time) row {
	r := row{
		Namespace: s.cluster.Namespace, Cluster: s.cluster.Name, State: state, Since: unlessZero(s.since(state)), BlockedBy: []string{},
		saved: s.saved(state, now),
	}
	if s.view.Problems == 0 {
		threshold := s.view.Policy.Threshold.Seconds()
		r.ThresholdSeconds = &threshold
	} else {
		r.BlockedBy = append(r.BlockedBy, string(idle.ReasonInvalidAnnotation))
	}
	if state == StateDisabled && s.view.Problems == 0 {
		r.BlockedBy = append(r.BlockedBy, string(idle.ReasonDisabled))
	}
	if value, there := s.cluster.Annotations[idle.KeyLastWake]; there {
		if wake, err := plan.ParseLastWake(value); err == nil {
			r.LastWake = &wake
		} else {
			r.note("the annotation " + idle.KeyLastWake + " is not understood")
		}
	}
	if state == StateAwake && s.podsKnown && !slices.ContainsFunc(s.pods, ready) {
		r.note("no instance is ready")
	}
	return r
}

// take takes in what the sidecar of the primary says.
func (r *row) take(i instance, a answer) {
	if a.err != nil {
		r.note(fmt.Sprintf("the sidecar of %s cannot be asked: %s", i.pod, because(a.err)))
		return
	}
	r.IdleForSeconds = a.report.IdleForSeconds
	for _, blocker := range a.report.Blockers {
		if !slices.Contains(r.BlockedBy, blocker) {
			r.BlockedBy = append(r.BlockedBy, blocker)
		}
	}
}

func (r *row) note(text string) {
	if r.Note != "" {
		text = r.Note + "; " + text
	}
	r.Note = text
}

// writeRows writes for people.
func writeRows(w io.Writer, rows []row, everywhere, colours bool, now time.Time) {
	out := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	line := func(namespace, state string, cells ...string) {
		if everywhere {
			_, _ = fmt.Fprintf(out, "%s\t", namespace)
		}
		_, _ = fmt.Fprintf(out, "%s\t%s\t%s\n", cells[0], state, strings.Join(cells[1:], "\t"))
	}
	notes := slices.ContainsFunc(rows, func(r row) bool { return r.Note != "" })
	head := []string{"NAME", "SINCE", "IDLE FOR", "THRESHOLD", "BLOCKED BY", "LAST WOKEN BY", "SAVED"}
	if notes {
		head = append(head, "NOTE")
	}
	line("NAMESPACE", paint(colours, plain, "STATE"), head...)
	for _, r := range rows {
		since := ""
		if r.Since != nil {
			since = ago(*r.Since, now)
		}
		cells := []string{
			r.Cluster, since, long(r.IdleForSeconds), long(r.ThresholdSeconds), strings.Join(r.BlockedBy, ","), woken(r.LastWake, now),
			hours(r.saved),
		}
		if notes {
			cells = append(cells, r.Note)
		}
		for i := range cells {
			cells[i] = cell(cells[i])
		}
		line(cell(r.Namespace), paint(colours, r.State.colour(), string(r.State)), cells...)
	}
	_ = out.Flush() // nobody is left to be told
}

// woken says who woke a cluster, in one line.
func woken(w *plan.LastWake, now time.Time) string {
	if w == nil {
		return ""
	}
	who := w.By
	if w.User != "" {
		who += fmt.Sprintf(" (%s@%s)", w.User, cmp.Or(w.Database, w.User))
	}
	return who + ", " + ago(w.At, now)
}
