package cluster

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/audit"
)

// ErrLeftOut says that too many traces were left out: nothing checks the models against what happened to those Clusters.
var ErrLeftOut = errors.New("more traces were left out than may be")

// mayBeLeftOut is how many traces may be left out of each test, by the name that its namespaces begin with. Clusters that tests borrow
// are in namespaces of their own.
var mayBeLeftOut = map[string]int{
	"lent": 1, // a person fences it
}

// Traces writes what happened to every Cluster since Up, here and in the clusters of other networks, a file for each, into a
// directory that it makes, and returns a report.
// A cluster that was not made here has no log, and the report says so.
func (l Layout) Traces(directory string, networks ...string) (string, error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("make the directory of the traces: %w", err)
	}
	if l.Another() {
		return "traces" + logUnknown, nil
	}
	var traces []audit.Trace
	var omitted []string
	if err := l.readLogs(networks, func(log io.Reader) error {
		found, others, err := audit.Traces(log)
		traces, omitted = append(traces, found...), append(omitted, others...)
		return err
	}); err != nil {
		return "", err
	}
	var report strings.Builder
	steps := 0
	for _, trace := range traces {
		steps += len(trace.Steps)
		name := fmt.Sprintf("%s.%s.%s.trace", trace.Namespace, trace.Name, trace.UID)
		if err := writeFile(filepath.Join(directory, name), trace.Text()); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(&report, "traces: %d clusters, %d steps\n", len(traces), steps)
	for _, omission := range omitted {
		fmt.Fprintf(&report, "  left out: %s\n", omission)
	}
	return report.String(), checkLeftOut(omitted)
}

// checkLeftOut returns [ErrLeftOut] unless all that is left out may be. Each omission begins with the Cluster's namespace.
func checkLeftOut(omitted []string) error {
	left := maps.Clone(mayBeLeftOut)
	for _, omission := range omitted {
		namespace, _, _ := strings.Cut(omission, "/")
		test := namespace[:max(0, strings.LastIndex(namespace, "-"))]
		if left[test]--; left[test] < 0 {
			return fmt.Errorf("%w: %s", ErrLeftOut, omission)
		}
	}
	return nil
}
