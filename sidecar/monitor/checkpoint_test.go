package monitor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

var booted = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// fileAt is a file on a machine that was booted that long ago, whose clock shows booted plus uptime plus step.
func fileAt(path, instance string, up, step time.Duration) *CheckpointFile {
	return &CheckpointFile{path: path, instance: instance, now: func() (time.Time, time.Duration, error) { return booted.Add(up + step), up, nil }}
}

func checkpointOf(idleSince time.Time) Checkpoint {
	return Checkpoint{
		Specification: "2 1.30", Started: 7, Ledger: activity.Ledger{"app": {Sessions: 3, Reset: 1}},
		State: idle.State{IdleSince: idleSince, SampledUntil: idleSince.Add(time.Second)},
	}
}

func TestCheckpointFile_survivesStepsOfTheClock(t *testing.T) {
	t.Parallel()
	for rule, step := range map[string]time.Duration{
		"the clock goes on": 0, "the clock is set forward": 24 * time.Hour, "the clock is set back": -24 * time.Hour,
	} {
		path := filepath.Join(t.TempDir(), "checkpoint.json")
		if err := fileAt(path, "u", time.Hour, 0).Save(checkpointOf(booted.Add(50 * time.Minute))); err != nil {
			t.Fatal(err)
		}
		got, err := fileAt(path, "u", time.Hour+time.Minute, step).Load()
		if err != nil {
			t.Fatal(err)
		}
		// Idle for eleven minutes, whatever the clock shows.
		if diff := cmp.Diff(checkpointOf(booted.Add(50*time.Minute+step)), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rule, diff)
		}
	}
}

func TestCheckpointFile_readsTheFileOfAnEarlierProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	// As the first release wrote it, an hour after boot.
	body := `{"version":1,"instance":"u","savedAt":3600000000000,"idleSince":3000000000000,"eligibleSince":0,"lookedUntil":3001000000000,` +
		`"lastActivity":0,"ledger":{"app":{"Sessions":3,"Reset":1}},"started":7}`
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := fileAt(path, "u", time.Hour, 0).Load()
	if err != nil {
		t.Fatal(err)
	}
	want := checkpointOf(booted.Add(50 * time.Minute))
	want.Specification = "" // which it did not write
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCheckpointFile_refusesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "checkpoint.json")
	if _, err := fileAt(path, "u", time.Hour, 0).Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := fileAt(path, "u", time.Hour, 0).Save(checkpointOf(booted)); err != nil {
		t.Fatal(err)
	}
	if _, err := fileAt(path, "v", time.Hour, 0).Load(); err == nil {
		t.Error("another pod's is taken")
	}
	if _, err := fileAt(path, "u", time.Minute, 0).Load(); err == nil {
		t.Error("one of another start of the machine is taken")
	}
	if err := os.WriteFile(path, []byte(`{"version":1`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fileAt(path, "u", time.Hour, 0).Load(); err == nil {
		t.Error("half a file is taken")
	}
	if err := NewCheckpointFile(filepath.Join(t.TempDir(), "missing", "checkpoint.json"), "u").Save(Checkpoint{}); err == nil {
		t.Error("saved where nothing can be")
	}
}

func FuzzDecodeCheckpoint(f *testing.F) {
	f.Add([]byte(`{"version":1,"instance":"u","savedAt":5,"idleSince":4,"ledger":{"app":{"Sessions":1}}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := decodeCheckpoint(body, "u", booted, time.Hour)
		if err == nil && got.State.IdleSince.After(booted) {
			t.Errorf("idle since the future: %s", got.State.IdleSince)
		}
	})
}
