package monitoring

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const readme = root + "/README.md"

// table is what the README says of a program's metrics. A label that all of them have is left out.
func table(families map[string]*family, without ...string) string {
	var out strings.Builder
	out.WriteString("| metric | kind | meaning |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		shown := slices.DeleteFunc(labelsOf(f), func(label string) bool { return slices.Contains(without, label) })
		if len(shown) != 0 {
			name += "{" + strings.Join(shown, ",") + "}"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", name, f.kind, f.help)
	}
	return out.String()
}

// TestTheReadmeListsTheMetrics holds the README's tables against the programs' pages; with -update it writes them.
func TestTheReadmeListsTheMetrics(t *testing.T) { //nolint:paralleltest // it may write the file that others read
	body, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	text := string(body)
	for heading, want := range map[string]string{
		"### Of the sidecars": table(sidecarPages(t), "cluster"), "### Of the plugin": table(pluginPages(t)),
	} {
		_, section, found := strings.Cut(text, heading+"\n")
		if !found {
			t.Fatalf("the README has no %q", heading)
		}
		section, _, _ = strings.Cut(section, "\n#")
		got := regexp.MustCompile(`(?m)(^\|.*\n)+`).FindString(section)
		if got == "" {
			t.Fatalf("%q has no table", heading)
		}
		if *update {
			text = strings.Replace(text, got, want, 1)
		} else if got != want {
			t.Errorf("%q has another table; go test ./monitoring -update writes it:\n%s", heading, want)
		}
	}
	if *update {
		if err := os.WriteFile(readme, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheReadmeExplainsTheAlerts has a row for every alert, with its severity, what it means and what to do.
func TestTheReadmeExplainsTheAlerts(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(body), "\n## Alerts\n") // the runbook links lead here
	if !found {
		t.Fatal("the README has no section of alerts")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| [^|]+\\. \\| [^|]+\\. \\|$").FindAllStringSubmatch(section, -1) {
		rows[row[1]] = row[2]
	}
	all := alerts(t)
	for _, alert := range all {
		if got := rows[alert.Alert]; got != alert.Labels["severity"] {
			t.Errorf("%s is %q in the README and %q in the rules", alert.Alert, got, alert.Labels["severity"])
		}
	}
	if len(rows) != len(all) {
		t.Errorf("the README has %d alerts, and there are %d", len(rows), len(all))
	}
}
