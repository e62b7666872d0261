package sleep

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// TestTranscripts compares whole handovers with the files in testdata.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	for _, h := range slices.Concat(handovers, dozes) {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			tr := &transcript{t: t}
			tr.print(columns[:]...)
			h.play(tr)
			got := h.title + "\n\n" + tr.table()
			path := filepath.Join("testdata", h.name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("it goes otherwise (go test -update writes it anew):\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// transcript plays events to a Machine and writes down what came of each. It keeps the Cluster as the API server has it.
type transcript struct {
	t       *testing.T
	machine Machine
	cluster View
	rows    [][]string
}

// columns are those of a transcript.
var columns = [...]string{"event", "phase", "asked for", "report", "timers"}

// announcement is what the transcripts announce.
const announcement = "pod-uid 12:00:30"

func (tr *transcript) print(cells ...string) { tr.rows = append(tr.rows, cells) }

// note says what happens beside the Machine.
func (tr *transcript) note(words string) { tr.print("-- " + words) }

// table is the rows with aligned columns.
func (tr *transcript) table() string {
	var widths [len(columns)]int
	for _, row := range tr.rows {
		for i, cell := range row {
			if len(row) == len(columns) {
				widths[i] = max(widths[i], len(cell))
			}
		}
	}
	var text strings.Builder
	for _, row := range tr.rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s  ", widths[i], cell)
		}
		text.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return text.String()
}

// give gives the Machine an event.
func (tr *transcript) give(words string, e Event) {
	machine, out := Step(tr.machine, e)
	tr.machine = machine
	tr.ignoresOtherAnswers()
	var asked, reports []string
	for _, a := range out.Actions {
		asked = append(asked, a.String())
	}
	for _, r := range out.Reports {
		words := strings.TrimSpace(fmt.Sprintf("%s %s", r.Result, cmp.Or(string(r.Reason), r.Action.String())))
		if r.Doze {
			words = "doze: " + words
		}
		reports = append(reports, words)
	}
	tr.print(words, machine.Phase().String(), strings.Join(asked, ", "), strings.Join(reports, ", "), strings.Join(timersOf(machine), ", "))
}

// ignoresOtherAnswers fails the test if the Machine takes an answer in that it does not wait for.
func (tr *transcript) ignoresOtherAnswers() {
	tr.t.Helper()
	for a := ListBackups; a <= LiftFence; a <<= 1 {
		if tr.machine.pending&a != 0 {
			continue
		}
		stray := Completed{Action: a, Outcome: Lost, Blocker: idle.ReasonActive, InUse: true}
		if machine, out := Step(tr.machine, stray); machine != tr.machine || len(out.Actions)+len(out.Reports) != 0 {
			tr.t.Errorf("in %s an answer to %s, which nobody asked for, is taken in", tr.machine.phase, a)
		}
	}
}

// timersOf are the timers that run.
func timersOf(m Machine) []string {
	var words []string
	running := m.Timers()
	for timer := range Timers() {
		if takes, ok := running[timer]; ok {
			words = append(words, fmt.Sprintf("%s %gs", timer, takes.Seconds()))
		}
	}
	return words
}

// starts is a sidecar that starts anew.
func (tr *transcript) starts() {
	tr.machine = Machine{}
	tr.print("the sidecar starts", tr.machine.Phase().String(), "", "", "")
}

// sees has the watch bring the Cluster after a change.
func (tr *transcript) sees(change func(*View)) {
	change(&tr.cluster)
	var words []string
	v := tr.cluster
	for _, w := range []struct {
		word    string
		applies bool
	}{
		{"standby", !v.Primary}, {"primary", v.Primary}, {"unhealthy", !v.Healthy}, {"not ready", v.NotReady}, {"woken by people only", v.Manual},
		{"announced", v.Announced != "" && v.Acknowledged != v.Announced}, {"acknowledged", v.Announced != "" && v.Acknowledged == v.Announced},
		{"held", v.Announced != "" && v.Holding == v.Announced}, {"fenced", v.Fenced}, {"PostgreSQL has stopped", v.Stopped},
		{"not fenced any more", !v.Fenced && v.DozeEnding}, {"not to doze any more", v.Fenced && !v.MayDoze},
		{"switched on by us", v.HibernationOn && v.OwnsHibernation}, {"switched on by a person", v.HibernationOn && !v.OwnsHibernation}, {"pods are deleted", v.HibernationBegun},
	} {
		if w.applies {
			words = append(words, w.word)
		}
	}
	tr.give("the Cluster: "+strings.Join(words, ", "), Viewed{v})
}

// observes gives an observation; without a reason it is idle for the threshold.
func (tr *transcript) observes(against idle.Reason) {
	inUse := against == idle.ReasonActive
	tr.give("an observation: "+cmp.Or(string(against), "idle"), Observed{Blocker: against, InUse: inUse, IdleRestarted: inUse})
}

// done has actions succeed, one after the other.
func (tr *transcript) done(actions ...Action) {
	for _, a := range actions {
		tr.pending(a)
		c := Completed{Action: a}
		tr.takesEffect(a)
		if a&(fencePatches|ReadCluster) != 0 {
			c.View = tr.cluster
		}
		if a == Announce {
			c.Announcement = announcement
		}
		words := a.String() + ": done"
		if a == ReadCluster {
			words = "ReadCluster: hibernation is " + map[bool]string{true: "on", false: "off"}[tr.cluster.HibernationOn]
			if tr.cluster.Fenced {
				words += ", and it is fenced"
			}
		}
		tr.give(words, c)
	}
}

// takesEffect does to the Cluster what an action does.
func (tr *transcript) takesEffect(a Action) {
	switch v := &tr.cluster; a { //nolint:exhaustive // the others change nothing here
	case Announce:
		v.Announced = announcement
	case RemoveAnnouncement:
		v.Announced, v.DozeEnding, v.Stopped = "", false, false
	case Fence:
		v.Fenced, v.DozeEnding, v.Announced = true, true, ""
	case RecordStop:
		v.Stopped = true
	case LiftFence:
		v.Fenced = false
	case Hibernate:
		v.HibernationOn, v.OwnsHibernation, v.Announced = true, true, ""
	case Withdraw:
		v.HibernationOn, v.OwnsHibernation = false, false
	}
}

// pending fails the test if an action was not asked for.
func (tr *transcript) pending(a Action) {
	tr.t.Helper()
	if tr.machine.pending&a == 0 {
		tr.t.Fatalf("%s was not asked for:\n%s", a, tr.table())
	}
}

// fails has an action fail.
func (tr *transcript) fails(a Action, o Outcome) {
	tr.pending(a)
	tr.give(a.String()+": "+o.String(), Completed{Action: a, Outcome: o})
}

// finds has an action find something that speaks against sleep.
func (tr *transcript) finds(a Action, against idle.Reason) {
	tr.pending(a)
	inUse := slices.Contains([]idle.Reason{idle.ReasonActive, idle.ReasonSiblingActive}, against)
	tr.give(a.String()+": "+string(against), Completed{Action: a, Blocker: against, InUse: inUse})
}

// expires has a timer run out.
func (tr *transcript) expires(timer Timer) {
	if _, ok := tr.machine.Timers()[timer]; !ok {
		tr.t.Fatalf("timer %s does not run:\n%s", timer, tr.table())
	}
	tr.give("timer "+timer.String(), Timeout{timer})
}
