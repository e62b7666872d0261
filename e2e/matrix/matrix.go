// Package matrix tells what became of the end-to-end tests on clusters of several versions.
package matrix

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
)

// Default are the combinations that are tried: every operator, PostgreSQL and Kubernetes with the usual others, and every operator and
// every PostgreSQL with the newest Kubernetes, too.
var Default = []cluster.Versions{
	{Operator: "1.30.0", Kubernetes: "1.34.4", Postgres: "17"},
	{Operator: "1.30.0", Kubernetes: "1.36.3", Postgres: "18"},
	{Operator: "1.30.0", Kubernetes: "1.34.4", Postgres: "15"},
	{Operator: "1.29.1", Kubernetes: "1.34.4", Postgres: "18"},
	{Operator: "1.29.1", Kubernetes: "1.34.4", Postgres: "17"},
	{Operator: "1.28.2", Kubernetes: "1.34.4", Postgres: "17"},
	{Operator: "1.28.2", Kubernetes: "1.34.4", Postgres: "15"},
	{Operator: "1.29.1", Kubernetes: "1.36.3", Postgres: "15"},
	{Operator: "1.28.2", Kubernetes: "1.36.3", Postgres: "17"},
}

// Parse reads a list of combinations OPERATOR/KUBERNETES/POSTGRESQL, apart by spaces.
func Parse(list string) ([]cluster.Versions, error) {
	var combinations []cluster.Versions
	for _, text := range strings.Fields(list) {
		parts := strings.Split(text, "/")
		if len(parts) != 3 {
			return nil, fmt.Errorf("combination %q: allowed is OPERATOR/KUBERNETES/POSTGRESQL, such as 1.29.1/1.34.4/17", text)
		}
		versions := cluster.Versions{Operator: parts[0], Kubernetes: parts[1], Postgres: parts[2]}
		if err := versions.Check(); err != nil {
			return nil, fmt.Errorf("combination %q: %w", text, err)
		}
		combinations = append(combinations, versions)
	}
	return combinations, nil
}

// Result is what became of the tests on one cluster.
type Result struct {
	// Versions are those of the cluster.
	Versions cluster.Versions
	// Passed, Failed and Skipped are names of tests.
	Passed, Failed, Skipped []string
	// Took is how long all of it did.
	Took time.Duration
	// Err says why the tests could not be run to their end, or that some failed.
	Err error
}

// event is a line of `go test -json`.
type event struct{ Action, Test, Output string }

// Read takes in what `go test -json` prints, and passes on to log what the tests say. Other lines, of what was run before the
// tests, are passed on as they are.
func (r *Result) Read(output io.Reader, log io.Writer) error {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			e = event{Output: lines.Text() + "\n"}
		}
		r.count(e)
		if _, err := io.WriteString(log, e.Output); err != nil {
			return fmt.Errorf("write the log: %w", err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read what the tests print: %w", err)
	}
	return nil
}

// count takes in the end of a test, not those of its parts.
func (r *Result) count(e event) {
	if e.Test == "" || strings.Contains(e.Test, "/") {
		return
	}
	switch e.Action {
	case "pass":
		r.Passed = append(r.Passed, e.Test)
	case "fail":
		r.Failed = append(r.Failed, e.Test)
	case "skip":
		r.Skipped = append(r.Skipped, e.Test)
	}
}

// Table shows the results in Markdown.
func Table(results []Result) string {
	var table strings.Builder
	table.WriteString("| CloudNativePG | Kubernetes | PostgreSQL | passed | failed | left out | minutes |\n|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		failed := names(r.Failed)
		if r.Err != nil && len(r.Failed) == 0 {
			failed = "not run to the end"
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %d | %s | %s | %.0f |\n",
			r.Versions.Operator, r.Versions.Kubernetes, r.Versions.Postgres, len(r.Passed), failed, names(r.Skipped), r.Took.Minutes())
	}
	return table.String()
}

func names(tests []string) string {
	if len(tests) == 0 {
		return "0"
	}
	sorted := slices.Sorted(slices.Values(tests))
	return fmt.Sprintf("%d: %s", len(sorted), strings.Join(sorted, ", "))
}
