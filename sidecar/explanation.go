package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// explanation shows why a cluster is awake: who is connected, which sessions count and why, what else prevents sleep,
// and when the cluster would sleep.
type explanation struct {
	// At is when the sample ended.
	At time.Time `json:"at"`
	// Sessions are the client sessions, without PostgreSQL's own processes.
	Sessions []explainedSession `json:"sessions"`
	// InUse are the reasons why the instance is in use, Blockers what else keeps it awake.
	InUse    []idle.Reason `json:"inUse"`
	Blockers []idle.Reason `json:"blockers"`
	// LastUseSeconds is the time since the last statement of the sessions that count only up to it; absent if there are
	// none.
	LastUseSeconds *float64 `json:"lastUseSeconds,omitempty"`
	// Worker is the newest decision of the instance's sidecar; absent without one.
	Worker *contract.Report `json:"worker,omitempty"`
}

// explainedSession is a client session and its classification.
type explainedSession struct {
	PID         int64   `json:"pid"`
	User        string  `json:"user"`
	Application string  `json:"application"`
	Database    string  `json:"database"`
	Client      string  `json:"client"`
	State       string  `json:"state"`
	Seconds     float64 `json:"seconds"`
	Counts      bool    `json:"counts"`
	Why         string  `json:"why"`
}

// describe explains a sample.
func describe(at time.Time, tally activity.Tally, blockers []idle.Reason, sessions []activity.Session, rules activity.Rules, worker *contract.Report) explanation {
	e := explanation{At: at.UTC(), Sessions: []explainedSession{}, InUse: tally.InUse(), Blockers: blockers, Worker: worker}
	for _, s := range sessions {
		class := activity.Classify(s, rules)
		if class == activity.ClassInternal {
			continue
		}
		counts, why := verdict(s, class, rules)
		e.Sessions = append(e.Sessions, explainedSession{
			PID: s.PID, User: s.User, Application: s.Application, Database: s.Database, Client: client(s), State: s.State,
			Seconds: max(s.IdleFor, 0).Seconds(), Counts: counts, Why: why,
		})
	}
	slices.SortFunc(e.Sessions, func(a, b explainedSession) int {
		if a.Counts != b.Counts {
			if a.Counts {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.PID, b.PID)
	})
	if ago, resting := tally.LastUse(); resting {
		seconds := ago.Seconds()
		e.LastUseSeconds = &seconds
	}
	return e
}

// verdict reports whether a session counts, and explains why.
func verdict(s activity.Session, class activity.Class, rules activity.Rules) (counts bool, why string) {
	switch class {
	case activity.ClassInfrastructure:
		return false, "it belongs to the operator, a standby, a pooler's login, or this sidecar"
	case activity.ClassIgnored:
		return false, "the ignore annotation names it"
	case activity.ClassReplication:
		return true, idle.ReasonReplicationClient.Description()
	case activity.ClassWorker:
		return true, idle.ReasonBackgroundWorker.Description()
	case activity.ClassWraparound:
		return true, idle.ReasonWraparoundVacuum.Description()
	default:
		if rules.Queries && s.State == "idle" {
			return false, "idle; with activity=queries it counts only until its last statement ended"
		}
		return true, "it is a client session"
	}
}

func client(s activity.Session) string {
	switch {
	case s.Peer.IsValid():
		return s.Peer.String()
	case s.Local:
		return "local"
	default:
		return "-"
	}
}

// writeJSON writes the explanation as one JSON object.
func (e explanation) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(e); err != nil {
		return fmt.Errorf("write the explanation: %w", err)
	}
	return nil
}

// writeText writes the explanation as text.
func (e explanation) writeText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	p := func(format string, arguments ...any) { _, _ = fmt.Fprintf(table, format, arguments...) }
	p("%s\n\n", e.At.Format(time.RFC3339))
	if len(e.Sessions) == 0 {
		p("No client sessions.\n")
	} else {
		p("PID\tUSER\tAPPLICATION\tDATABASE\tCLIENT\tSTATE\tFOR\tCOUNTS\tWHY\n")
	}
	for _, s := range e.Sessions {
		counts := "no"
		if s.Counts {
			counts = "yes"
		}
		p("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.PID, dash(s.User), dash(s.Application), dash(s.Database), s.Client, dash(s.State),
			seconds(s.Seconds), counts, s.Why)
	}
	p("\n")
	for _, reason := range slices.Concat(e.InUse, e.Blockers) {
		p("Awake, because %s (%s).\n", reason.Description(), reason)
	}
	if e.LastUseSeconds != nil {
		p("The last statement of the idle sessions ended %s ago.\n", seconds(*e.LastUseSeconds))
	}
	if e.Worker != nil {
		e.writeWorker(p)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the explanation: %w", err)
	}
	return nil
}

// writeWorker writes the newest decision of the sidecar.
func (e explanation) writeWorker(p func(string, ...any)) {
	r := e.Worker
	switch {
	case r.Reason == string(idle.ReasonDozing):
		p("The sidecar of %s: %s (%s).\n", r.Pod, idle.ReasonDozing.Description(), r.Reason)
		return
	case !r.Rules.Enabled:
		p("The sidecar of %s: the feature is off (%s).\n", r.Pod, r.Reason)
		return
	case !r.Known:
		p("The sidecar of %s does not know whether the instance is in use (%s).\n", r.Pod, r.Reason)
	default:
		p("The sidecar of %s: %s (%s).\n", r.Pod, idle.Reason(r.Reason).Description(), r.Reason)
	}
	p("Kept awake by: %s.\n", list(r.Blockers))
	if len(r.DozeBlockers) != 0 {
		p("It does not doze for now: %s.\n", list(r.DozeBlockers))
	}
	if r.UnroutableServices != "" {
		p("Services whose clients the plugin cannot route to the gateway: %s.\n", r.UnroutableServices)
	}
	if r.IgnoredPods != "" {
		p("Every pod is probably ignored: %s.\n", r.IgnoredPods)
	}
	if r.IdleForSeconds != nil && r.IdleSince != nil {
		p("This instance has been idle since %s, for %s; the threshold is %s.\n",
			r.IdleSince.Format(time.RFC3339), seconds(*r.IdleForSeconds), seconds(r.Rules.ThresholdSeconds))
	}
	switch {
	case r.SleepDue == nil:
	case r.SleepDue.After(e.At):
		p("If it stays idle, the threshold is reached at %s.\n", r.SleepDue.Format(time.RFC3339))
	default:
		p("The threshold was reached at %s.\n", r.SleepDue.Format(time.RFC3339))
	}
	if r.LastActivity != nil {
		p("Activity was last seen at %s.\n", r.LastActivity.Format(time.RFC3339))
	}
	if r.LastUnseenClient != "" {
		p("The last session that counted and that no sample found was from %s.\n", r.LastUnseenClient)
	}
	if r.Scheduler {
		p("An extension that schedules jobs is loaded: the instance is sampled every two seconds, and a shorter job may not be seen.\n")
	}
	if r.Known && !r.SocketEvents {
		p("The kernel does not report ended sessions: the instance is sampled every second, and shorter sessions show up only in the counters.\n")
	}
}

func list(reasons []string) string { return cmp.Or(strings.Join(reasons, ", "), "nothing") }

func dash(text string) string { return cmp.Or(text, "-") }

func seconds(s float64) string {
	return (time.Duration(s * float64(time.Second))).Round(time.Second).String()
}
