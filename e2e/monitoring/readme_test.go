package monitoring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What people read of metrics and alerts.
const metricsPage, runbooks = root + "/docs/reference/metrics.md", root + "/docs/runbooks"

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

// values is what the page says of the labels with a closed set of values. The reasons that keep a
// cluster awake are on a page of their own.
func values(programs ...map[string]*family) string {
	out := "| label | values |\n|---|---|\n"
	var rows []string
	for _, families := range programs {
		for name, f := range families {
			for _, label := range labelsOf(f) {
				open := []string{"certificate", "cluster", "method", "namespace", "pod", "sidecar_image", "version"}
				listed := name == "cnpg_scale_to_zero_blocked" || name == "cnpg_scale_to_zero_observed_seconds_total"
				if !slices.Contains(open, label) && !listed {
					rows = append(rows, fmt.Sprintf("| `%s{%s}` | `%s` |\n", name, label, strings.Join(slices.Sorted(maps.Keys(f.labels[label])), "`, `")))
				}
			}
		}
	}
	slices.Sort(rows)
	return out + strings.Join(rows, "")
}

// TestThePageListsTheMetrics holds the page's tables against the programs' pages; with -update it writes them.
func TestThePageListsTheMetrics(t *testing.T) { // it may write the file that others read
	hold(t, metricsPage, "## Metrics of the sidecars", table(sidecarPages(t), "cluster"))
	hold(t, metricsPage, "## Metrics of the plugin", table(pluginPages(t)))
	hold(t, metricsPage, "## Values of labels", values(sidecarPages(t), pluginPages(t)))
}

// TestEveryAlertHasARunbook checks that the table of the runbooks lists every alert, and that each runbook has the sections Impact,
// Diagnose and Fix, and Mitigate if the alert is critical.
func TestEveryAlertHasARunbook(t *testing.T) { // it may write the file that others read
	want := "| alert | severity | after |\n|---|---|---|\n"
	for _, alert := range alerts(t) {
		after := "at once"
		if alert.For != nil {
			after = string(*alert.For)
		}
		file := counted(alert) + ".md"
		want += fmt.Sprintf("| [`%s`](%s) | %s | %s |\n", alert.Alert, file, alert.Labels["severity"], after)
		body, err := os.ReadFile(filepath.Join(runbooks, file))
		if err != nil {
			t.Fatal(err)
		}
		sections := regexp.MustCompile(`(?m)^#+ .+`).FindAllString(string(body), -1)
		sections = slices.DeleteFunc(sections, func(s string) bool { return s == "## Mitigate" && alert.Labels["severity"] != "critical" })
		title := []string{"# " + counted(alert), "## Impact", "## Diagnose", "## Fix"}
		if alert.Labels["severity"] == "critical" {
			title = slices.Insert(title, 2, "## Mitigate")
		}
		if !slices.Equal(sections, title) && alert.Labels["severity"] != "none" {
			t.Errorf("%s has the sections %q, want %q", file, sections, title)
		}
	}
	hold(t, filepath.Join(runbooks, "README.md"), "# Alerts", want)
}

// hold compares the first table under a heading of a page with the wanted one; with -update it writes that.
func hold(t *testing.T, page, heading, want string) {
	t.Helper()
	body, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, section, found := strings.Cut("\n"+string(body), "\n"+heading+"\n")
	at := regexp.MustCompile(`(?m)(^\|.*\n)+`).FindStringIndex(section)
	if !found || at == nil {
		t.Fatalf("%s has no table under %q", page, heading)
	}
	switch {
	case section[at[0]:at[1]] == want:
	case *update:
		text := before + "\n" + heading + "\n" + section[:at[0]] + want + section[at[1]:]
		if err := os.WriteFile(page, []byte(text[1:]), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%q of %s has another table; go test ./monitoring -update writes it:\n%s", heading, page, want)
	}
}
