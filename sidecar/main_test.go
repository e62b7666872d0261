package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"NAMESPACE": "shop", "CLUSTER_NAME": "orders", "POD_NAME": "orders-1", "POD_UID": "u", "PGHOST": "/controller/run",
	}
	for _, row := range []struct {
		rule   string
		change map[string]string
		bad    []string
	}{
		{"good settings are taken", nil, nil},
		{"every bad one is named at once", map[string]string{"POD_NAME": "", "PGPORT": "0", "LOG_LEVEL": "loud", "METRICS_ADDRESS": "9189", "PGHOST": "run", "FAREWELL_FILE": "run/x"}, []string{"POD_NAME", "PGPORT", "LOG_LEVEL", "METRICS_ADDRESS", "PGHOST", "FAREWELL_FILE"}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			s, err := readSettings(func(name string) string {
				if value, set := row.change[name]; set {
					return value
				}
				return good[name]
			})
			if len(row.bad) == 0 && (err != nil || s.server.Port != 5432 || s.identity.Group != "postgresql.cnpg.io") {
				t.Errorf("got %+v, %v", s, err)
			}
			for _, name := range row.bad {
				if err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%s is not named: %v", name, err)
				}
			}
		})
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule      string
		arguments []string
		code      int
		says      string
	}{
		{"the version is printed", []string{"version"}, 0, version},
		{"an unknown command is refused", []string{"sleep"}, 2, "sleep"},
		{"arguments are refused", []string{"drain", "now"}, 2, "drain"},
		{"a drain without a worker has nothing to do", []string{"drain"}, 0, ""},
	} {
		var out bytes.Buffer
		if code := run(row.arguments, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
			t.Errorf("%s: code %d, said %q", row.rule, code, out.String())
		}
	}
}

// The README's table of reasons says what the code says.
func TestReasonsInTheReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range idle.Reasons() {
		if row := "| `" + string(reason) + "` | " + reason.Description() + " |"; !strings.Contains(string(readme), row) {
			t.Errorf("the README has no row %s", row)
		}
	}
}

// The page for those who look for help has an entry for every reason, and none for what is no reason.
func TestTroubleshootingHasEveryReason(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("TROUBLESHOOTING.md")
	if err != nil {
		t.Fatal(err)
	}
	entries := map[idle.Reason]string{}
	for _, entry := range regexp.MustCompile("(?m)^### `(.*)`\n\n(.*)").FindAllStringSubmatch(string(page), -1) {
		entries[idle.Reason(entry[1])] = entry[2]
	}
	for _, reason := range idle.Reasons() {
		if entries[reason] == "" {
			t.Errorf("there is no entry %s", reason)
		}
		delete(entries, reason)
	}
	for reason := range entries {
		t.Errorf("%s is no reason", reason)
	}
}
