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
	"time"
)

var tracesOf = flag.String("traces", "", "also replay the traces of this directory, which the command `cluster traces` of the end-to-end tests writes")

// happened is a step of a trace: a word, and the line that has it.
type happened struct{ word, line string }

// parseTraces reads a file of traces. A line names a Cluster, or has a time, a word and perhaps a pod.
func parseTraces(text string) ([][]happened, error) {
	var traces [][]happened
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && fields[0] == "cluster":
			traces = append(traces, nil)
		case len(fields) < 2 || len(traces) == 0:
			return nil, fmt.Errorf("not a step: %q", line)
		default:
			last := &traces[len(traces)-1]
			*last = append(*last, happened{fields[1], strings.TrimSpace(line)})
		}
	}
	return traces, nil
}

// wordsOf is a trace of which nothing but the words is known.
func wordsOf(text string) []happened {
	var steps []happened
	for word := range strings.FieldsSeq(text) {
		steps = append(steps, happened{word, word})
	}
	return steps
}

// replay returns how many steps the model accepts, and what it would accept next if it does not accept all of them.
func (a *automaton) replay(steps []happened) (accepted int, possible []string) {
	s := a.start()
	for i, step := range steps {
		after := a.step(s, step.word)
		if len(after.worlds) == 0 {
			return i, a.possible(s)
		}
		s = after
	}
	return len(steps), nil
}

// explain shows where a trace leaves the model.
func explain(steps []happened, accepted int, possible []string) string {
	var text strings.Builder
	for i, step := range steps {
		mark := "  "
		if i == accepted {
			mark = "->"
		}
		fmt.Fprintf(&text, "%s %3d %s\n", mark, i+1, step.line)
	}
	if accepted != len(steps) {
		fmt.Fprintf(&text, "the model has no such move; it has: %s", strings.Join(possible, ", "))
	}
	return text.String()
}

// TestReplay holds the models to the world: they accept what happened to real clusters, and refuse what must not happen.
func TestReplay(t *testing.T) {
	t.Parallel()
	a := newAutomaton()
	t.Run("real traces are accepted", func(t *testing.T) { replayFiles(t, a) }) //nolint:paralleltest // they share the automaton
	t.Run("doctored ones are not", func(t *testing.T) { replayRows(t, a) })     //nolint:paralleltest // they share the automaton
}

func replayFiles(t *testing.T, a *automaton) {
	t.Helper()
	files, err := filepath.Glob("testdata/traces/*.trace")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces, %v", err)
	}
	if *tracesOf != "" { // without any file if the cluster was made elsewhere
		run, err := filepath.Glob(filepath.Join(*tracesOf, "*.trace"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, run...)
	}
	began, count, steps := time.Now(), 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		traces, err := parseTraces(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, trace := range traces {
			count, steps = count+1, steps+len(trace)
			if accepted, possible := a.replay(trace); accepted != len(trace) {
				t.Errorf("%s:\n%s", file, explain(trace, accepted, possible))
			}
		}
	}
	t.Logf("%d traces of %d steps replayed in %s; %d states were visited", count, steps, time.Since(began).Round(time.Millisecond), len(a.worlds))
}

// A handover and its end, in words.
const (
	begin  = "backups-listed announce acknowledge "
	asleep = begin + "backups-listed hibernate operator-begins pods-gone "
)

// replayRows also holds that every word has its move: one that is renamed is found here.
func replayRows(t *testing.T, a *automaton) {
	t.Helper()
	seen := map[string]bool{}
	for _, row := range []struct {
		rule, words string
		refused     int // the position of the word that the model has no move for; 0: none
	}{
		{"a cluster is woken and sleeps again", asleep + "wake " + asleep, 0},
		{"somebody uses it during the handover", begin + "remove-announcement " + asleep, 0},
		{"schedules are suspended and resumed", "schedules-appear " + begin + "suspend backups-listed hibernate operator-begins pods-gone wake resume schedules-gone " + asleep, 0},
		{"the switch is withdrawn", begin + "backups-listed hibernate withdraw " + begin, 0},
		{"nobody acknowledges", "backups-listed announce remove-announcement", 0},
		{"a failover during the handover", "schedules-appear " + begin + "suspend failover remove-announcement resume", 0},
		{"a failover, and the new primary puts it to sleep", "failover " + asleep, 0},
		{"a failover once the switch is on", begin + "backups-listed hibernate failover withdraw", 0},
		{"a person removes the announcement", begin + "person-removes-announcement " + asleep, 0},
		{"a person hibernates and wakes it", "person-hibernates operator-begins pods-gone person-wakes " + asleep, 0},
		{"a person wakes it in the middle", begin + "backups-listed hibernate operator-begins person-wakes " + asleep, 0},
		{"a person takes the switch over", begin + "backups-listed hibernate person-takes-switch operator-begins pods-gone person-wakes", 0},
		{"a person comes to own the suspension", "schedules-appear " + begin + "suspend backups-listed hibernate person-owns-suspension operator-begins pods-gone wake resume schedules-gone " + asleep, 0},
		{"the feature is turned off during sleep", "schedules-appear " + begin + "suspend backups-listed hibernate operator-begins pods-gone others-resume person-wakes", 0},
		{"a person comes to own two suspensions, and takes the mark off another", "schedules-appear " + begin + "suspend backups-listed hibernate person-owns-suspension person-owns-suspension others-resume operator-begins pods-gone wake resume", 0},
		{"wake=manual needs no acknowledgement", "wake-manual backups-listed announce backups-listed hibernate operator-begins pods-gone person-wakes wake-on-connect " + asleep, 0},
		{"an announcement whose answer was lost comes late, and another replaces it", "backups-listed announce " + asleep, 0},

		{"hibernated without an acknowledgement", "backups-listed announce backups-listed hibernate", 4},
		{"hibernated with an acknowledgement of an older announcement", begin + "remove-announcement backups-listed announce backups-listed hibernate", 8},
		{"hibernated although Backups were not listed since", begin + "hibernate", 4},
		{"announced without a list of Backups", "announce", 1},
		{"hibernated with active schedules", "schedules-appear " + begin + "backups-listed hibernate", 6},
		{"suspended before the acknowledgement", "schedules-appear backups-listed announce suspend", 4},
		{"resumed while it sleeps", "schedules-appear " + begin + "suspend backups-listed hibernate operator-begins pods-gone resume", 10},
		{"resumed while the operator begins", "schedules-appear " + begin + "suspend backups-listed hibernate resume", 8},
		{"announced again although schedules are suspended", "schedules-appear " + begin + "suspend backups-listed announce", 7},
		{"suspended again although the attempt is over", "schedules-appear " + begin + "suspend remove-announcement resume suspend", 8},
		{"withdrawn although the operator has begun", begin + "backups-listed hibernate operator-begins withdraw", 7},
		{"withdrawn although a person hibernated it", "person-hibernates withdraw", 2},
		{"the gateway wakes what a person hibernated", "person-hibernates operator-begins pods-gone wake", 4},
		{"the gateway wakes before the pods are gone", begin + "backups-listed hibernate operator-begins wake", 7},
		{"acknowledged without an announcement", "acknowledge", 1},
		{"hibernated after a person removed the announcement", begin + "backups-listed person-removes-announcement hibernate", 6},
		{"after wake=manual has ended", "wake-manual wake-on-connect backups-listed announce backups-listed hibernate", 6},
		{"the sidecar begins while a person's switch is on", "person-hibernates operator-begins pods-gone backups-listed announce", 5},
		{"a word that nobody knows", "unheard", 1},
	} {
		steps := wordsOf(row.words)
		accepted, possible := a.replay(steps)
		if want := cmp.Or(row.refused, len(steps)+1) - 1; accepted != want {
			t.Errorf("%s: %d steps were accepted, want %d:\n%s", row.rule, accepted, want, explain(steps, accepted, possible))
		}
		for _, step := range steps[:accepted] {
			seen[step.word] = true
		}
	}
	for _, word := range vocabulary() {
		if !seen[word] {
			t.Errorf("no row has %s: is there still a move of that name?", word)
		}
	}
}

// vocabulary is every word that the model knows.
func vocabulary() []string {
	var words []string
	for _, table := range []map[string]string{actionWords, moveWords} {
		for _, word := range table {
			words = append(words, word)
		}
	}
	for word := range changes {
		words = append(words, word)
	}
	slices.Sort(words)
	return words
}
