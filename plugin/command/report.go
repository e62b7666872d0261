package command

import (
	"cmp"
	"context"
	_ "embed" // for the page
	"fmt"
	"html/template"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/plugin/estimate"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// thresholds are those of the report. It is sorted by the usual one, the default of inactivity-minutes.
var thresholds = []time.Duration{5 * time.Minute, 15 * time.Minute, usual, 2 * time.Hour, 8 * time.Hour}

const usual, usualIndex = 30 * time.Minute, 2

const day, week = 24 * time.Hour, 7 * 24 * time.Hour

// caveats say what the estimate cannot see.
var caveats = []string{
	"This is an estimate, from samples a minute apart of CloudNativePG's own metrics.",
	"It misses sessions between two scrapes that write no row and make few transactions, and assumes that the clients of a " +
		"sleeping cluster would behave the same.",
	"Idle pools count as use; background workers of extensions may. Backups, maintenance and the time that a wake takes are " +
		"left out.",
	"Freed are the requests of the PostgreSQL containers, as the Cluster sets them, for the time asleep; volumes are kept, " +
		"and the sidecar's requests are not subtracted.",
}

// report is the output of the command. From and To are absent if the sidecars have counted, each for its own time.
type report struct {
	Estimate bool      `json:"estimate"`
	Caveats  []string  `json:"caveats"`
	From     time.Time `json:"from,omitzero"`
	To       time.Time `json:"to,omitzero"`
	// Clusters are sorted by the requests that they would free at the usual threshold.
	Clusters []clusterReport `json:"clusters"`
}

type clusterReport struct {
	Namespace string `json:"namespace"`
	Cluster   string `json:"cluster"`
	// KnownShare is the part of the time in which it is known whether the cluster was in use; all other shares are
	// parts of that.
	KnownShare float64 `json:"knownShare"`
	// ObservedSeconds is for how long the sidecars have counted; absent from an estimate.
	ObservedSeconds *float64    `json:"observedSeconds,omitempty"`
	Sleeps          []wouldHave `json:"sleeps"`
	// Own are the sleeps at the cluster's own threshold; absent from an estimate.
	Own *contract.ReportedSleeps `json:"own,omitempty"`
	// WakeSeconds is the median of its newest wakes; absent before the first, and from an estimate.
	WakeSeconds float64 `json:"wakeSeconds,omitempty"`
	// NeverSleeps says that the cluster would not have slept at the usual threshold.
	NeverSleeps bool `json:"neverSleeps"`
	// UsedBy are who seem to keep it awake, if it sleeps for less than half of the time at the usual threshold.
	UsedBy []estimate.User `json:"usedBy,omitempty"`
	// AwakeShares say which part of the time each reason kept it awake, other than the wait for the threshold; absent
	// from an estimate.
	AwakeShares map[string]float64 `json:"awakeShares,omitempty"`
	Note        string             `json:"note,omitempty"`
	requests    plan.Requests
}

// wouldHave is how a cluster would have slept at one threshold. The savings are absent where the containers request
// nothing.
type wouldHave struct {
	ThresholdSeconds float64 `json:"thresholdSeconds"`
	// TooShort says that the time that is known is shorter than the threshold, so that the rest says nothing.
	TooShort      bool     `json:"tooShort,omitempty"`
	AsleepShare   float64  `json:"asleepShare"`
	WakesADay     float64  `json:"wakesADay"`
	CPUHoursAWeek *float64 `json:"freedCPUHoursAWeek,omitempty"`
	GiBHoursAWeek *float64 `json:"freedGiBHoursAWeek,omitempty"`
}

// Percent is for the page.
func (w wouldHave) Percent() string { return fmt.Sprintf("%.1f", 100*w.AsleepShare) }

// Usual is how the cluster would have slept at the usual threshold.
func (r clusterReport) Usual() wouldHave { return r.Sleeps[usualIndex] }

// reportOf is the report of a cluster of which nothing is known.
func reportOf(c *cnpgv1.Cluster) clusterReport {
	r := clusterReport{Namespace: c.Namespace, Cluster: c.Name, requests: plan.RequestsOf(c)}
	for _, threshold := range thresholds {
		r.Sleeps = append(r.Sleeps, wouldHave{ThresholdSeconds: threshold.Seconds()})
	}
	return r
}

func (p *program) reportCommand() *cobra.Command {
	var options estimate.Options
	which, since := choice{all: true}, ""
	c := &cobra.Command{
		Use:   "report",
		Short: "Report how clusters would sleep, as the sidecars have counted, or as estimated from a Prometheus",
		Long: `Say how clusters would sleep. Without --prometheus, the sidecars of the clusters that have the annotation
xata.io/scale-to-zero-enabled with the value "observe" or "true" have counted it, and how long their wakes took.

With --prometheus, estimate how clusters would have slept at several thresholds, how often they would have been
woken, what that would have freed, and who keeps the others awake.

The Clusters need not list the plugin. How they were used comes from CloudNativePG's own metrics, with the labels
namespace and pod, in a Prometheus or a server with its API: the sessions by user and application, and the
transactions. Only what was scraped is known. The output says what the estimate cannot see.`,
		Annotations: map[string]string{annotationAlso: outputHTML},
		RunE: func(c *cobra.Command, arguments []string) error {
			if len(arguments) != 0 {
				return usage("report takes no CLUSTER; --selector chooses clusters")
			}
			if err := which.parse(c); err != nil {
				return err
			}
			past, err := parseDays(since)
			if err != nil || past < time.Hour || past > 366*day {
				return usage(`--since is %q; it must be from 1h to 366d, such as "36h" or "14d"`, since)
			}
			var server *estimate.Server
			if c.Flags().Changed("prometheus") {
				if server, err = estimate.Open(options); err != nil {
					err = usage("%v", err)
				}
			} else {
				c.Flags().Visit(func(f *pflag.Flag) {
					if f.Name == "since" || strings.HasPrefix(f.Name, "prometheus-") {
						err = usage("--%s needs --prometheus, because only the estimate uses it", f.Name)
					}
				})
			}
			if err != nil {
				return err
			}
			a, err := p.connect()
			if err != nil {
				return err
			}
			clusters, err := a.clusters(c.Context(), which)
			if err != nil {
				return err
			}
			var answer report
			if server == nil {
				answer, err = a.counted(c.Context(), clusters), c.Context().Err()
			} else {
				to := time.Now().UTC().Truncate(estimate.Step)
				answer, err = makeReport(c.Context(), server, clusters, to.Add(-past.Truncate(estimate.Step)), to)
			}
			if err != nil {
				return err
			}
			if p.output == outputHTML {
				return page.Execute(p.Out, answer)
			}
			return p.write(answer, answer.text())
		},
	}
	flags := c.Flags()
	flags.StringVar(&options.URL, "prometheus", "",
		"URL of a Prometheus, without /api/v1: estimate from CloudNativePG's own metrics")
	flags.StringVar(&options.TokenFile, "prometheus-token-file", "", "file with the bearer token for the Prometheus")
	flags.StringVar(&options.CAFile, "prometheus-ca-file", "",
		"file with the CA certificates for that of the Prometheus, in PEM")
	flags.StringToStringVar(&options.Headers, "prometheus-header", nil, "headers for the Prometheus, such as X-Scope-OrgID=team")
	flags.StringVar(&options.Match, "prometheus-match", "",
		`label matchers for a Prometheus of several Kubernetes clusters, such as k8s_cluster="eu"`)
	flags.StringVar(&since, "since", "14d", "how far back the estimate starts")
	which.flags(c, "only clusters that match this label selector", "clusters of all namespaces")
	return c
}

// makeReport reads the past of the clusters, and then who used those that sleep little.
func makeReport(
	ctx context.Context, server *estimate.Server, clusters []cnpgv1.Cluster, from, to time.Time,
) (report, error) {
	answer := report{Estimate: true, Caveats: caveats, From: from, To: to, Clusters: []clusterReport{}}
	asked := make([]estimate.Cluster, len(clusters))
	for i := range clusters {
		c := &clusters[i]
		asked[i] = estimate.Cluster{Namespace: c.Namespace, Name: c.Name, Instances: c.Spec.Instances}
	}
	histories, err := server.Histories(ctx, asked, from, to)
	if err != nil {
		return answer, err
	}
	var restless []int
	var of []estimate.Cluster
	for i := range clusters {
		r, sleeps := reportOf(&clusters[i]), !clusters[i].IsReplica()
		if sleeps {
			r.estimate(histories[i])
		} else {
			r.NeverSleeps, r.Note = true, "it is a replica cluster, which does not sleep"
		}
		answer.Clusters = append(answer.Clusters, r)
		if sleeps && histories[i].Used() && r.Usual().AsleepShare < 0.5 {
			restless, of = append(restless, i), append(of, asked[i])
		}
	}
	users, err := server.Users(ctx, of, from, to)
	if err != nil {
		return answer, err
	}
	for n, i := range restless {
		answer.Clusters[i].UsedBy = users[n]
		if len(users[n]) == 0 {
			answer.Clusters[i].Note = "its transactions show use, but no sample contains a session"
		}
	}
	answer.sort()
	return answer, nil
}

// sort puts first what frees most.
func (r report) sort() {
	slices.SortStableFunc(r.Clusters, func(a, b clusterReport) int {
		x, y := a.Usual(), b.Usual()
		return cmp.Or(
			cmp.Compare(ptr.Deref(y.CPUHoursAWeek, 0), ptr.Deref(x.CPUHoursAWeek, 0)),
			cmp.Compare(ptr.Deref(y.GiBHoursAWeek, 0), ptr.Deref(x.GiBHoursAWeek, 0)),
			cmp.Compare(y.AsleepShare, x.AsleepShare), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Cluster, b.Cluster),
		)
	})
}

// countedCaveats are those of what the sidecars have counted.
var countedCaveats = []string{
	"The sidecars have counted this since each primary's pod was created, while its cluster was observed or enabled; " +
		"a hibernation keeps the counts.",
	caveats[len(caveats)-1],
}

// counted asks the sidecars, and the Clusters that hibernate. The clusters of which nothing is counted are noted.
func (a *access) counted(ctx context.Context, clusters []cnpgv1.Cluster) report {
	answer := report{Caveats: countedCaveats, Clusters: make([]clusterReport, len(clusters))}
	asked := make([]instance, len(clusters))
	for i := range clusters {
		c, r := &clusters[i], reportOf(&clusters[i])
		switch kept := keptCounts(c, time.Now()); {
		case kept != nil:
			r.count(kept)
		case !plan.Lists(c):
			r.Note = "it does not list the plugin"
		case c.Status.CurrentPrimary == "":
			r.Note = "it has no primary"
		default:
			asked[i] = instance{c.Namespace, c.Name, c.Status.CurrentPrimary}
		}
		answer.Clusters[i] = r
	}
	for i, answered := range a.askAll(ctx, asked) {
		r := &answer.Clusters[i]
		switch observed := answered.report.WhatIf; {
		case answered.pod == "":
		case answered.err != nil:
			r.Note = "cannot query its sidecar: " + because(answered.err)
		case observed == nil || observed.ObservedSeconds <= 0:
			r.Note = "it has not been observed"
		default:
			r.count(observed)
		}
	}
	answer.sort()
	return answer
}

// keptCounts returns the counts that the Cluster keeps while it hibernates, up to now; nil if they are of an earlier
// hibernation or by another, or if nothing is counted.
func keptCounts(c *cnpgv1.Cluster, now time.Time) *contract.ReportedWhatIf {
	counts, err := idle.ParseWhatIf([]byte(c.Annotations[contract.AnnotationCounts]))
	counts = counts.Asleep(now)
	if err != nil || counts.Observed <= 0 || counts.Hibernated != c.Annotations[contract.AnnotationAsleepSince] ||
		!plan.View(c, now).OwnsHibernation ||
		!contract.SetByUs(c.ManagedFields, "metadata", "annotations", contract.AnnotationCounts) {
		return nil
	}
	return counts.Report()
}

// count takes over what a sidecar has counted.
func (r *clusterReport) count(observed *contract.ReportedWhatIf) {
	r.KnownShare, r.ObservedSeconds, r.AwakeShares = 1, &observed.ObservedSeconds, map[string]float64{}
	r.Own, r.WakeSeconds = &observed.Own, rounded(observed.WakeSeconds)
	lasted := time.Duration(observed.ObservedSeconds * float64(time.Second))
	for i := range r.Sleeps {
		for _, s := range observed.Sleeps {
			if s.ThresholdSeconds == r.Sleeps[i].ThresholdSeconds {
				r.sleeps(i, min(s.Seconds/observed.ObservedSeconds, 1), s.Count, lasted)
			}
		}
	}
	r.NeverSleeps = r.Usual().never()
	for reason, seconds := range observed.AwakeSeconds {
		if reason != string(idle.ReasonWaiting) && reason != string(idle.ReasonObserved) {
			r.AwakeShares[reason] = rounded(seconds / observed.ObservedSeconds)
		}
	}
}

// estimate takes over what a Prometheus knows.
func (r *clusterReport) estimate(history estimate.History) {
	known := history.Known()
	r.KnownShare = rounded(known.Hours() / history.Length().Hours())
	if known == 0 {
		r.Note = "the Prometheus has no samples of the sessions of all its instances"
		return
	}
	for i, threshold := range thresholds {
		sleep := history.Sleep(threshold)
		r.sleeps(i, sleep.Asleep.Hours()/known.Hours(), sleep.Wakes, known)
	}
	r.NeverSleeps = r.Usual().never()
}

// sleeps takes over the share of the time asleep at a threshold, and how often the cluster slept in that time.
func (r *clusterReport) sleeps(at int, share float64, sleeps int, lasted time.Duration) {
	w := &r.Sleeps[at]
	w.TooShort = lasted.Seconds() < w.ThresholdSeconds
	w.AsleepShare = rounded(share)
	w.WakesADay = rounded(float64(sleeps) * day.Hours() / lasted.Hours())
	w.CPUHoursAWeek = positive(r.requests.CPU * w.AsleepShare * week.Hours())
	w.GiBHoursAWeek = positive(r.requests.Memory / (1 << 30) * w.AsleepShare * week.Hours())
}

// never reports whether the cluster would not have slept, although there was time for it.
func (w wouldHave) never() bool { return !w.TooShort && w.AsleepShare == 0 }

// rounded keeps as many digits as an estimate has at most.
func rounded(number float64) float64 { return math.Round(number*1e4) / 1e4 }

// positive is nil where nothing is requested.
func positive(number float64) *float64 {
	if number <= 0 {
		return nil
	}
	return new(rounded(number))
}

func (w wouldHave) Freed() string { return hoursOf(w.CPUHoursAWeek, w.GiBHoursAWeek, 1, 1) }

func (r clusterReport) Wake() string {
	if r.WakeSeconds == 0 {
		return ""
	}
	return fmt.Sprintf("%.0fs", r.WakeSeconds)
}

// Who formats who keeps the cluster awake, and what is to be noted.
func (r clusterReport) Who() string {
	var parts []string
	for _, user := range r.UsedBy {
		parts = append(parts, user.Name+" ("+cmp.Or(user.Application, "no application name")+")")
	}
	for _, reason := range slices.SortedFunc(maps.Keys(r.AwakeShares), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.AwakeShares[b], r.AwakeShares[a]), cmp.Compare(a, b))
	}) {
		parts = append(parts, reason+" ("+share(r.AwakeShares[reason])+")")
	}
	if r.Note != "" {
		parts = append(parts, r.Note)
	}
	return strings.Join(parts, ", ")
}

// Summary says in one sentence what the usual threshold would bring.
func (r report) Summary() string {
	sleep, never, unknown, cpu, memory := 0, 0, 0, 0.0, 0.0
	for _, c := range r.Clusters {
		switch {
		case c.NeverSleeps:
			never++
		case c.KnownShare == 0, c.Usual().TooShort:
			unknown++
		default:
			sleep++
		}
		cpu, memory = cpu+ptr.Deref(c.Usual().CPUHoursAWeek, 0), memory+ptr.Deref(c.Usual().GiBHoursAWeek, 0)
	}
	source := "Counted by the sidecars"
	if r.Estimate {
		source = "Estimate from " + r.From.Format(time.RFC3339) + " to " + r.To.Format(time.RFC3339)
	}
	text := fmt.Sprintf("%s: with a threshold of 30 minutes, %d of %d clusters would have slept, %d never, and %d are unknown.",
		source, sleep, len(r.Clusters), never, unknown)
	if freed := hoursOf(positive(cpu), positive(memory), 1, 1); freed != "" {
		text += " That would have freed " + freed + " a week."
	}
	return text
}

// text has the table. Each threshold has the share of the time asleep and the wakes a day.
func (r report) text() string {
	var text strings.Builder
	if len(r.Clusters) > 0 {
		table := printers.GetNewTabWriter(&text)
		wakes := map[bool]string{false: "A WAKE TAKES\t"}[r.Estimate]
		_, _ = fmt.Fprintln(table,
			"NAMESPACE\tNAME\tKNOWN\t5 MIN\t15 MIN\t30 MIN\t2 H\t8 H\t"+wakes+"FREED A WEEK (30 MIN)\tKEPT AWAKE BY")
		for _, c := range r.Clusters {
			known := share(c.KnownShare)
			if c.ObservedSeconds != nil {
				known = long(c.ObservedSeconds)
			}
			cells := []string{c.Namespace, c.Cluster, known}
			for _, s := range c.Sleeps {
				text := ""
				if c.KnownShare > 0 && !s.TooShort {
					text = fmt.Sprintf("%s, %.1f/d", share(s.AsleepShare), s.WakesADay)
				}
				cells = append(cells, text)
			}
			if !r.Estimate {
				cells = append(cells, c.Wake())
			}
			cells = append(cells, c.Usual().Freed(), c.Who())
			for i := range cells {
				cells[i] = cell(cells[i])
			}
			_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
		}
		_ = table.Flush()
		text.WriteString("\n")
	}
	return text.String() + strings.Join(append([]string{r.Summary()}, r.Caveats...), "\n") + "\n"
}

// share formats a part of the time; what is a little is not nothing, and what is not all is not 100%.
func share(part float64) string {
	switch percent := 100 * part; {
	case percent > 0 && percent < 1:
		return "<1%"
	case percent > 99 && percent < 100:
		return ">99%"
	default:
		return fmt.Sprintf("%.0f%%", percent)
	}
}

//go:embed report.html
var pageText string

var page = template.Must(template.New("report").Funcs(template.FuncMap{"share": share, "long": long}).Parse(pageText))
