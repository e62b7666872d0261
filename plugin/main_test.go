package main

import (
	"bytes"
	"strings"
	"testing"
)

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
		{"arguments that are no flags are not understood", []string{"check-uninstall", "orders"}, 1, `argument "orders" is not understood`},
		{"the command line for people is another program", []string{"kubectl", "status"}, 2, `"kubectl"`},
	} {
		var out bytes.Buffer
		if code := run(row.arguments, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: code %d, said %q", row.rule, code, out.String())
		}
	}
}
