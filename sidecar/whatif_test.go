package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestWhatIfFile(t *testing.T) {
	t.Parallel()
	file := whatIfFile(filepath.Join(t.TempDir(), "what-if.json"))
	if got, err := file.Load(); err != nil || !got.Decided.IsZero() {
		t.Errorf("at first: %+v, %v", got, err)
	}
	noon := time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)
	want := idle.WhatIf{
		Observed: time.Hour, Awake: map[idle.Reason]time.Duration{idle.ReasonActive: time.Minute},
		At: make([]idle.Sleeps, len(idle.Thresholds())), Own: idle.Sleeps{Count: 1, Lasted: time.Second, Since: noon},
		Decided: noon, Reason: idle.ReasonObserved,
	}
	if err := file.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := file.Load()
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for rule, body := range map[string]string{"half a file": `{"obs`, "one of another program": `{"observed":1,"decided":"2026-03-02T12:00:00Z","at":[{}]}`} {
		if err := os.WriteFile(string(file), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := file.Load(); err == nil {
			t.Errorf("%s is read as %+v", rule, got)
		}
	}
}
