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

// trace is what happened to a Cluster. That of one that dozed is for the model of dozes.
type trace struct {
	dozed bool
	steps []happened
}

// parseTraces reads a file of traces. A line names a Cluster, or has a time, a word and perhaps a pod.
func parseTraces(text string) ([]trace, error) {
	var traces []trace
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) > 1 && (fields[0] == "cluster" || fields[0] == "dozer"):
			traces = append(traces, trace{dozed: fields[0] == "dozer"})
		case len(fields) < 2 || len(traces) == 0:
			return nil, fmt.Errorf("not a step: %q", line)
		default:
			last := &traces[len(traces)-1]
			last.steps = append(last.steps, happened{fields[1], strings.TrimSpace(line)})
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
func (a *automaton[W, P]) replay(steps []happened) (accepted int, possible []string) {
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

// automata are both models.
type automata struct {
	handovers *automaton[world, *world]
	dozes     *automaton[dozer, *dozer]
}

func (a automata) replay(t trace) (accepted int, possible []string) {
	if t.dozed {
		return a.dozes.replay(t.steps)
	}
	return a.handovers.replay(t.steps)
}

// TestReplay holds the models to the world: they accept what happened to real clusters, and refuse what must not happen.
func TestReplay(t *testing.T) {
	t.Parallel()
	a := automata{
		newAutomaton[world, *world](world{primary: true, behind: true}),
		newAutomaton[dozer, *dozer](dozer{behind: true, mayDoze: true, endpoint: true}),
	}
	t.Run("real traces are accepted", func(t *testing.T) { replayFiles(t, a) }) // they share the automata
	t.Run("doctored ones are not", func(t *testing.T) { replayRows(t, a) })     // they share the automata
}

func replayFiles(t *testing.T, a automata) {
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
			count, steps = count+1, steps+len(trace.steps)
			if accepted, possible := a.replay(trace); accepted != len(trace.steps) {
				t.Errorf("%s:\n%s", file, explain(trace.steps, accepted, possible))
			}
		}
	}
	t.Logf("%d traces of %d steps replayed in %s; %d states were visited", count, steps, time.Since(began).Round(time.Millisecond),
		len(a.handovers.worlds)+len(a.dozes.worlds))
}

// A handover and its end, in words.
const (
	begin  = "backups-listed announce acknowledge "
	asleep = begin + "backups-listed hibernate operator-begins pods-gone "
)

// A doze and its end, in words.
const (
	held   = begin + "hold backups-listed "
	dozing = held + "fence record-stop "
)

// replayRows also holds that every word has its move: one that is renamed is found here.
func replayRows(t *testing.T, a automata) {
	t.Helper()
	seen := map[string]bool{}
	replayRowsOf(t, false, a, seen, []replayRow{
		{"a cluster is woken and sleeps again", asleep + "wake " + asleep, 0},
		{"somebody uses it during the handover", begin + "remove-announcement " + asleep, 0},
		{"schedules are suspended and resumed", "schedules-appear " + begin + "suspend backups-listed hibernate operator-begins pods-gone wake resume schedules-gone " + asleep, 0},
		{"hibernation is withdrawn", begin + "backups-listed hibernate withdraw " + begin, 0},
		{"nobody acknowledges", "backups-listed announce remove-announcement", 0},
		{"a failover during the handover", "schedules-appear " + begin + "suspend failover remove-announcement resume", 0},
		{"a failover, and the new primary puts it to sleep", "failover " + asleep, 0},
		{"a failover once hibernation is on", begin + "backups-listed hibernate failover withdraw", 0},
		{"a person removes the announcement", begin + "person-removes-announcement " + asleep, 0},
		{"a person hibernates and wakes it", "person-hibernates operator-begins pods-gone person-wakes " + asleep, 0},
		{"a person wakes it in the middle", begin + "backups-listed hibernate operator-begins person-wakes " + asleep, 0},
		{"a person takes the hibernation annotation over", begin + "backups-listed hibernate person-takes-switch operator-begins pods-gone person-wakes", 0},
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
		{"the sidecar begins while a person's hibernation is on", "person-hibernates operator-begins pods-gone backups-listed announce", 5},
		{"a word that nobody knows", "unheard", 1},
	})
	replayRowsOf(t, true, a, seen, []replayRow{
		{"a doze is ended by a client, and comes again", dozing + "wake-dozing " + dozing, 0},
		{"schedules are suspended and resumed", "schedules-appear " + begin + "suspend hold backups-listed fence record-stop wake-dozing resume " + held, 0},
		{"a client comes while the gateway holds", begin + "hold interrupt " + dozing, 0},
		{"somebody uses it while it leaves its Services", begin + "remove-announcement " + dozing, 0},
		{"somebody uses it as it is fenced", held + "fence lift-fence remove-announcement " + dozing, 0},
		{"its policy changes", dozing + "lift-fence remove-announcement", 0},
		{"a person lifts the fence", dozing + "person-lifts-fence remove-announcement " + dozing, 0},
		{"a person replaces it while PostgreSQL stops", held + "fence person-replaces " + dozing, 0},
		{"a person fences it first", held + "person-fences remove-announcement person-lifts-fence", 0},
		{"a person takes the fence over", dozing + "person-takes-fence person-lifts-fence remove-announcement", 0},
		{"the pod is replaced, and its PostgreSQL is seen not to run", dozing + "record-stop wake-dozing " + dozing, 0},
		{"it hibernates, and is woken", dozing + "backups-listed hibernate operator-begins pods-gone remove-fence wake " + dozing, 0},
		{"a person hibernates it", dozing + "person-hibernates operator-begins pods-gone remove-fence person-wakes " + dozing, 0},
		{"the operator does not begin", dozing + "backups-listed hibernate withdraw lift-fence remove-announcement", 0},

		{"fenced although the gateway does not hold", begin + "backups-listed fence", 5},
		{"fenced although a client came", begin + "hold backups-listed interrupt fence", 7},
		{"fenced although Backups were not listed since the gateway holds", begin + "hold fence", 5},
		{"held without an acknowledgement", "backups-listed announce hold", 3},
		{"woken before PostgreSQL has stopped", held + "fence wake-dozing", 7},
		{"fenced with active schedules", "schedules-appear " + held + "fence", 7},
		{"resumed while it dozes", "schedules-appear " + begin + "suspend hold backups-listed fence resume", 9},
		{"a stop is recorded without a fence", held + "record-stop", 6},
		{"the marks are removed, and the fence stays", dozing + "remove-announcement", 8},
		{"hibernated although Backups were not listed since it dozes", dozing + "hibernate", 8},
		{"it hibernates awake, because of what only keeps it from dozing", begin + "backups-listed hibernate operator-begins pods-gone wake " + dozing, 0},
		{"hibernated awake without an acknowledgement", "backups-listed announce backups-listed hibernate", 4},
	})
	for _, word := range vocabulary() {
		if !seen[word] {
			t.Errorf("no row has %s: is there still a move of that name?", word)
		}
	}
}

// replayRow is a trace, and the position of the word that the model has no move for; 0: none.
type replayRow struct {
	rule, words string
	refused     int
}

func replayRowsOf(t *testing.T, dozed bool, a automata, seen map[string]bool, rows []replayRow) {
	t.Helper()
	for _, row := range rows {
		steps := wordsOf(row.words)
		accepted, possible := a.replay(trace{dozed, steps})
		if want := cmp.Or(row.refused, len(steps)+1) - 1; accepted != want {
			t.Errorf("%s: %d steps were accepted, want %d:\n%s", row.rule, accepted, want, explain(steps, accepted, possible))
		}
		for _, step := range steps[:accepted] {
			seen[step.word] = true
		}
	}
}

// vocabulary is every word that the models know.
func vocabulary() []string {
	words := slices.Clone(changes)
	for _, table := range []map[string]string{actionWords, moveWords} {
		for _, word := range table {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return words
}
