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

// page has what people read of metrics and alerts.
const page = root + "/docs/monitoring.md"

// table is what the page says of a program's metrics. A label that all of them have is left out.
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

// TestThePageListsTheMetrics holds the page's tables against the programs' pages; with -update it writes them.
func TestThePageListsTheMetrics(t *testing.T) { // it may write the file that others read
	hold(t, "## Metrics of the sidecars", table(sidecarPages(t), "cluster"))
	hold(t, "## Metrics of the plugin", table(pluginPages(t)))
}

// TestThePageListsTheAlerts has every alert in the table and in a section of its own, to which its runbook link leads.
func TestThePageListsTheAlerts(t *testing.T) { // it may write the file that others read
	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := "| alert | severity | after |\n|---|---|---|\n"
	for _, alert := range alerts(t) {
		after := "at once"
		if alert.For != nil {
			after = string(*alert.For)
		}
		want += fmt.Sprintf("| [`%s`](#%s) | %s | %s |\n", alert.Alert, strings.ToLower(counted(alert)), alert.Labels["severity"], after)
		if !regexp.MustCompile("(?m)^### " + counted(alert) + "\n\n.+").Match(body) {
			t.Errorf("%s has no section %q", page, "### "+counted(alert))
		}
	}
	hold(t, "## Alerts", want)
}

// hold holds the first table under a heading of the page against what it should be; with -update it writes it.
func hold(t *testing.T, heading, want string) {
	t.Helper()
	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, section, found := strings.Cut(string(body), "\n"+heading+"\n")
	at := regexp.MustCompile(`(?m)(^\|.*\n)+`).FindStringIndex(section)
	if !found || at == nil {
		t.Fatalf("%s has no table under %q", page, heading)
	}
	switch {
	case section[at[0]:at[1]] == want:
	case *update:
		text := before + "\n" + heading + "\n" + section[:at[0]] + want + section[at[1]:]
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%q of %s has another table; go test ./monitoring -update writes it:\n%s", heading, page, want)
	}
}
