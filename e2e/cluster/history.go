package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cnpg-i/scale-to-zero/e2e/audit"
)

// ErrNoTrace says that the audit log has no Cluster to trace.
var ErrNoTrace = errors.New("no Cluster was made while the audit log was written")

// Traces writes what happened to every Cluster since Up, here and in the clusters of other networks, a file for each, into a
// directory that it makes, and returns a report.
// A cluster that was not made here has no log, and the report says so.
func (l Layout) Traces(directory string, networks ...string) (string, error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("make the directory of the traces: %w", err)
	}
	if l.another() {
		return "traces: left out: the cluster of KUBECONFIG was not made here, and its audit log is not known\n", nil
	}
	if err := l.exists(); err != nil {
		return "", err
	}
	var traces []audit.Trace
	var omitted []string
	for _, one := range l.andBeside(networks) {
		found, others, err := readTraces(one.auditLog())
		if err != nil {
			return "", err
		}
		traces, omitted = append(traces, found...), append(omitted, others...)
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
	return report.String(), nil
}

func readTraces(path string) (traces []audit.Trace, omitted []string, err error) {
	log, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open the audit log: %w", err)
	}
	defer func() { _ = log.Close() }()
	if traces, omitted, err = audit.Traces(log); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return traces, omitted, nil
}
