package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A disk that is full must not pass for an answer.
func TestText_thatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no full device is here: %v", err)
	}
	defer func() { _ = full.Close() }()
	for _, line := range []string{"status", "status -o name", "status -o json", "explain orders", "release orders", "report", "disable orders"} {
		w := newWorld(t, cluster("orders"), pod("orders", "orders-1", time.Hour, true))
		text := w.runInto(t.Context(), full, strings.Fields(line)...)
		if !strings.HasSuffix(text, "write the answer: write /dev/full: no space left on device\n= 1\n") {
			t.Errorf("%s: %s", line, text)
		}
	}
}

// TestColourful uses a real pseudo-terminal, because colours depend on the type of the file.
func TestColourful(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	defer func() { _ = terminal.Close() }()
	regular, err := os.Create(filepath.Join(t.TempDir(), "regular"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = regular.Close() }()
	for _, row := range []struct {
		rule        string
		out         *os.File
		environment map[string]string
		want        bool
	}{
		{"a terminal has colours", terminal, map[string]string{"TERM": "xterm"}, true},
		{"also one that does not say what it is", terminal, nil, true},
		{"a regular file has none", regular, map[string]string{"TERM": "xterm"}, false},
		{"NO_COLOR takes them from a terminal", terminal, map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, false},
		{"unless it is empty", terminal, map[string]string{"TERM": "xterm", "NO_COLOR": ""}, true},
		{"a dumb terminal does not know them", terminal, map[string]string{"TERM": "dumb"}, false},
	} {
		if got := colourful(row.out, func(name string) string { return row.environment[name] }); got != row.want {
			t.Errorf("%s: colours are %t", row.rule, got)
		}
	}
}
