package idle

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// midnight is the beginning of every transcript.
var midnight = time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC)

// TestDecide_transcriptsAreGolden plays the transcripts in testdata. A line `at 00:10 idle` is a sample that takes 10 ms; after
// the arrow comes the decision, with the time of the next sample since the beginning. The words after the time are those of
// observationOf, and any reason as a blocker. A line `policy` changes the annotations.
func TestDecide_transcriptsAreGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("the transcript differs (-want +got):\n%s", diff)
			}
		})
	}
}

// play runs the inputs of a transcript and returns it with the decisions.
func play(t *testing.T, transcript string) string {
	t.Helper()
	var out strings.Builder
	var policy Policy
	var problems []Problem
	var state State
	lines := bufio.NewScanner(strings.NewReader(transcript))
	for lines.Scan() {
		line := lines.Text()
		input, _, _ := strings.Cut(line, " ->")
		fields := strings.Fields(input)
		switch {
		case len(fields) == 0 || fields[0] == "#":
			fmt.Fprintln(&out, line)
		case fields[0] == "policy":
			policy, problems = ParsePolicy(annotationsOf(unquoted(t, line)), midnight)
			fmt.Fprintln(&out, line)
		case fields[0] == "at":
			seen, now := observationOf(t, fields[1], fields[2:])
			var decision Decision
			state, decision = Decide(policy, len(problems) != 0, state, seen, now)
			fmt.Fprintf(&out, "%-40s -> %s\n", strings.TrimSpace(input), describe(decision))
		default:
			t.Fatalf("the line %q is not understood", line)
		}
	}
	return out.String()
}

// unquoted splits the annotations of a policy line; values with spaces are quoted.
func unquoted(t *testing.T, line string) []string {
	t.Helper()
	var pairs []string
	for _, m := range pair.FindAllStringSubmatch(strings.TrimPrefix(line, "policy"), -1) {
		pairs = append(pairs, m[1]+"="+m[2]+m[3])
	}
	return pairs
}

var pair = regexp.MustCompile(`([a-z-]+)=(?:"([^"]*)"|(\S+))`)

func annotationsOf(pairs []string) map[string]string {
	annotations := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		annotations[contract.Prefix+key] = value
	}
	return annotations
}

// observationOf parses the words of a sample. Its times are on the first day, or after "day N " on another one.
func observationOf(t *testing.T, clock string, words []string) (Observation, time.Time) {
	t.Helper()
	day := 0
	if text, rest, ok := strings.Cut(clock, "+"); ok {
		clock = rest
		if _, err := fmt.Sscanf(text, "%dd", &day); err != nil {
			t.Fatal(err)
		}
	}
	offset, err := time.Parse("15:04:05", clock)
	if err != nil {
		t.Fatal(err)
	}
	began := midnight.AddDate(0, 0, day).Add(offset.Sub(offset.Truncate(24 * time.Hour)))
	seen := Observation{Began: began, Ended: began.Add(10 * time.Millisecond), Reported: true}
	for _, word := range words {
		kind, argument, _ := strings.Cut(word, "=")
		switch kind {
		case "idle":
		case "active":
			seen.InUse = append(seen.InUse, ReasonActive)
		case "local":
			seen.Local = true
		case "unknown":
			seen = Observation{Unknown: true, Reported: true, Blockers: seen.Blockers}
		case "used":
			seen.Used = began
			if argument != "" {
				age, err := time.ParseDuration(argument)
				if err != nil {
					t.Fatal(err)
				}
				seen.Used = began.Add(-age)
			}
		case "gap":
			seen.Gap = true
		case "announced":
			seen.Announced = true
		case "polled":
			seen.Reported = false
		case "woken":
			seen.Woken, seen.Started = midnight, midnight
			if argument != "" { // how much later the server started
				took, err := time.ParseDuration(argument)
				if err != nil {
					t.Fatal(err)
				}
				seen.Started = midnight.Add(took)
			}
		case "requested":
			seen.Requested = began
			if argument != "" { // how long before
				ago, err := time.ParseDuration(argument)
				if err != nil {
					t.Fatal(err)
				}
				seen.Requested = began.Add(-ago)
			}
		case "against-doze":
			seen.DozeBlockers = append(seen.DozeBlockers, Reason(argument))
		case "siblings":
			seen.Siblings = 2
			seen.Elsewhere = elsewhereOf(t, argument, began)
		default:
			seen.Blockers = append(seen.Blockers, Reason(word))
		}
	}
	return seen, began.Add(10 * time.Millisecond)
}

// elsewhereOf parses what the other instances say: nothing yet, unknown, active, or for how long they have been idle.
func elsewhereOf(t *testing.T, word string, now time.Time) Elsewhere {
	t.Helper()
	switch word {
	case "":
		return Elsewhere{}
	case "unknown":
		return Elsewhere{Asked: true, Unknown: true}
	case "active":
		return Elsewhere{Asked: true, Active: true}
	case "used":
		return Elsewhere{Asked: true, IdleSince: now.Add(-time.Hour), Used: true}
	default:
		age, err := time.ParseDuration(word)
		if err != nil {
			t.Fatal(err)
		}
		return Elsewhere{Asked: true, IdleSince: now.Add(-age)}
	}
}

func describe(d Decision) string {
	next := "an event"
	if !d.Next.IsZero() {
		next = d.Next.Sub(midnight).Round(10 * time.Millisecond).String()
	}
	action := map[Action]string{ActionNone: "awake", ActionAsk: "ask", ActionDoze: "DOZE", ActionHibernate: "HIBERNATE"}[d.Action]
	return fmt.Sprintf("%s %s, sample again at %s", action, d.Reason, next)
}

func TestReason_everyOneIsDescribed(t *testing.T) {
	t.Parallel()
	for _, reason := range Reasons() {
		if reason.Description() == "" {
			t.Errorf("%s has no description", reason)
		}
	}
}

func TestDecide_looksAsOftenAsWhatIsNotReportedNeeds(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		seen Observation
		want time.Duration
	}{
		{"an instance whose ended sessions are reported rests", Observation{Reported: true}, RestInterval},
		{"a session over the Unix socket needs samples", Observation{Reported: true, Local: true}, LocalInterval},
		{"jobs of background workers need samples", Observation{Reported: true, Scheduler: true}, LocalInterval},
		{"an instance whose ended sessions are not reported is polled", Observation{Scheduler: true}, PollInterval},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			seen := row.seen
			seen.Began, seen.Ended = midnight, midnight
			_, decision := Decide(Policy{Enabled: true, Threshold: time.Hour}, false, State{}, seen, midnight)
			if got := decision.Next.Sub(midnight); got != row.want {
				t.Errorf("the next sample is after %s, want %s", got, row.want)
			}
		})
	}
}
