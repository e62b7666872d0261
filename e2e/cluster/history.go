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

var (
	// ErrNoTrace says that the audit log has no Cluster to trace.
	ErrNoTrace = errors.New("no Cluster was made while the audit log was written")
	// ErrLeftOut says that more traces were left out than may be: the models are not held to what happened to those Clusters.
	ErrLeftOut = errors.New("more traces were left out than may be")
)

// mayBeLeftOut is how many traces may be left out of each test, by the name that its namespaces begin with. Clusters that tests borrow
// are in namespaces of their own.
var mayBeLeftOut = map[string]int{
	// A person fences one. Others have hibernated because a person said so, and doze at another time.
	"lent": 4,
	// These hibernate once, and doze from then on.
	"oneruleforbothends-libpq": 1, "oneruleforbothends-refused": 1, "oneruleforbothends-java": 1, "oneruleforbothends-python": 1,
	"oneruleforbothends-go": 1, "oneruleforbothends-checks": 1,
	// This one hibernates once it cannot grow.
	"doze-hibernatesinsteadwhereitcannotgrow": 1,
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
	if len(traces) == 0 {
		return report.String(), ErrNoTrace
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
