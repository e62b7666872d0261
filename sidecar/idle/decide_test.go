package idle

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// midnight is the beginning of every transcript.
var midnight = time.Date(2026, time.March, 1, 0, 0, 0, 0, time.UTC)

// TestTranscripts plays the transcripts in testdata. A line `at 00:10 idle` is a look that takes 10 ms; what follows the
// arrow is the decision. Words after the time: idle, active, unknown, notified, and every reason as a blocker. A line
// `policy` changes the annotations.
func TestTranscripts(t *testing.T) {
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

// play runs the inputs of a transcript and returns it with what was decided.
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
			policy, problems = ParsePolicy(annotationsOf(fields[1:]))
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

func annotationsOf(pairs []string) map[string]string {
	annotations := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		annotations[Prefix+key] = value
	}
	return annotations
}

func observationOf(t *testing.T, clock string, words []string) (Observation, time.Time) {
	t.Helper()
	offset, err := time.Parse("15:04:05", clock)
	if err != nil {
		t.Fatal(err)
	}
	began := midnight.Add(offset.Sub(offset.Truncate(24 * time.Hour)))
	seen := Observation{Began: began, Ended: began.Add(10 * time.Millisecond)}
	for _, word := range words {
		switch word {
		case "idle":
		case "active":
			seen.Active = true
		case "unknown":
			seen = Observation{Unknown: true, Blockers: seen.Blockers}
		case "notified":
			seen.Notified = began
		default:
			seen.Blockers = append(seen.Blockers, Reason(word))
		}
	}
	return seen, began.Add(10 * time.Millisecond)
}

func describe(d Decision) string {
	next := "an event"
	if !d.Next.IsZero() {
		next = d.Next.Format("15:04:05.00")
	}
	action := "awake"
	if d.Action == ActionHibernate {
		action = "HIBERNATE"
	}
	return fmt.Sprintf("%s %s, look again at %s", action, d.Reason, next)
}

func TestEveryReasonIsDescribed(t *testing.T) {
	t.Parallel()
	for _, reason := range Reasons() {
		if reason.Description() == "" {
			t.Errorf("%s has no description", reason)
		}
	}
}

// FuzzDecide holds Decide against an oracle that reads the whole history anew: sleep is permitted exactly if the newest looks,
// back to one that ended a threshold before the newest began, were all idle, eligible, and not more than a gap apart.
func FuzzDecide(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 1, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 16, 0, 0, 0, 32, 0, 0, 48, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		policy := Policy{Enabled: true, Threshold: 7 * time.Second}
		var state State
		var history []Observation
		now := midnight
		for _, b := range script {
			now = now.Add(SampleInterval + time.Duration(b>>4)*time.Second)
			seen := Observation{Began: now, Ended: now.Add(5 * time.Millisecond)}
			switch b & 7 {
			case 1:
				seen.Active = true
			case 2:
				seen = Observation{Unknown: true}
			case 3:
				seen.Blockers = []Reason{ReasonNotPrimary}
			case 4:
				seen.Blockers = []Reason{ReasonBackupRunning}
			case 5:
				seen.Notified = now.Add(-time.Second)
			}
			history = append(history, seen)
			var decision Decision
			state, decision = Decide(policy, false, state, seen, seen.Ended)
			if seen.Unknown { // it has no time of its own
				state, decision = Decide(policy, false, state, seen, now)
			}
			if got, want := decision.Action == ActionHibernate, permitted(history, policy.Threshold); got != want {
				t.Fatalf("after %d looks: hibernate %t, the oracle says %t\n%+v", len(history), got, want, history)
			}
		}
	})
}

// permitted is the oracle.
func permitted(history []Observation, threshold time.Duration) bool {
	newest := history[len(history)-1]
	if newest.Unknown || newest.Active || len(newest.Blockers) != 0 {
		return false
	}
	notified := time.Time{}
	for i := len(history) - 1; i >= 0; i-- {
		look := history[i]
		if look.Unknown || look.Active || len(look.Blockers) != 0 && look.Blockers[0] == ReasonNotPrimary {
			return false
		}
		if look.Notified.After(notified) {
			notified = look.Notified
		}
		since := look.Ended
		if notified.After(since) {
			since = notified
		}
		if newest.Began.Sub(since) >= threshold {
			return true
		}
		if i > 0 && !history[i-1].Unknown && look.Began.Sub(history[i-1].Ended) > longestGap {
			return false
		}
	}
	return false
}
