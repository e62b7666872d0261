package main

import (
	"slices"
	"strings"
	"testing"
)

func TestRun_printsWholeLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200_000)
	slowly := func(letter string) string {
		return `for i in 1 2 3; do printf ` + letter + `; printf '%200000s' | tr ' ' x; echo; done`
	}
	var out strings.Builder
	if err := run(t.Context(), []string{slowly("a"), slowly("b"), "printf unended"}, &out); err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(slices.Values(strings.Split(strings.ReplaceAll(out.String(), "unended", ""), "\n")))
	if want := []string{"", "a" + long, "a" + long, "a" + long, "b" + long, "b" + long, "b" + long}; !slices.Equal(got, want) {
		t.Errorf("%d lines, of which some are not whole", len(got))
	}
}

func TestRun_failsIfOneDoes(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := run(t.Context(), []string{"echo one", "exit 3", "echo two"}, &out)
	if err == nil || !strings.Contains(err.Error(), "command 2 of 3: exit status 3") {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(out.String(), "one\n") || !strings.Contains(out.String(), "two\n") {
		t.Errorf("the others printed %q", out.String())
	}
	if err := run(t.Context(), nil, &out); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("without a command: %v", err)
	}
}
