package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		arguments []string
		want      []string
	}{
		{"the image's program has its parts", []string{"/plugin", "plugin", "--x"}, []string{"plugin", "--x"}},
		{"kubectl's program is the command line", []string{"/home/u/bin/kubectl-scale_to_zero", "status"}, []string{"kubectl", "status"}},
		{"on Windows too", []string{"kubectl-scale_to_zero.exe"}, []string{"kubectl"}},
		{"another name is none", []string{"kubectl-scale"}, nil},
	} {
		if got := commandLine(row.arguments); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", row.rule, got, row.want)
		}
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		arguments []string
		code      int
		says      string
	}{
		{"nothing is not understood", nil, 2, usage},
		{"nor is something else", []string{"serve"}, 2, `"serve"`},
		{"the version is printed", []string{"version"}, 0, version},
		{"the command line is a part", []string{"kubectl", "slep"}, 2, `"slep"`},
	} {
		var out bytes.Buffer
		if code := run(row.arguments, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: code %d, said %q", row.rule, code, out.String())
		}
	}
}
