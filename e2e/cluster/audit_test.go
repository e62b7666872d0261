package cluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyAnotherClusterMayHaveNoAuditLog(t *testing.T) {
	l := Layout{Run: filepath.Join(t.TempDir(), "run")}
	down := Layout{Run: l.Run + "-of-none"}
	if err := os.Mkdir(l.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule, kubeconfig string
		layout           Layout
		want             error
	}{
		{"what was made elsewhere is left out", "/elsewhere/kubeconfig", l, nil},
		{"what was made here has a log", l.Kubeconfig(), l, fs.ErrNotExist},
		{"what was made here has a log, though nothing names it", "", l, fs.ErrNotExist},
		{"where there is no cluster there is nothing to compare", "", down, ErrDown},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Setenv("KUBECONFIG", row.kubeconfig)
			report, err := row.layout.Audit(t.Context())
			if !errors.Is(err, row.want) || strings.Contains(report, "left out") != (row.want == nil) {
				t.Errorf("%q, %v, want the error %v", report, err, row.want)
			}
			report, err = row.layout.Traces(t.TempDir())
			if !errors.Is(err, row.want) || strings.Contains(report, "left out") != (row.want == nil) {
				t.Errorf("traces: %q, %v, want the error %v", report, err, row.want)
			}
		})
	}
}
