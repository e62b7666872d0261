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

func TestTraces_leaveOutNoMoreThanIsNamed(t *testing.T) {
	t.Parallel()
	const once = "lent-x2x4f/c: another manager fenced it"
	for _, row := range []struct {
		rule    string
		omitted []string
		want    error
	}{
		{"what a test is known to leave out may be", []string{once}, nil},
		{"nothing more of it may be", []string{once, once}, ErrLeftOut},
		{"nothing of another test may be", []string{"doze-iscommanded-x2x4f/c: a person fenced it"}, ErrLeftOut},
		{"nor what no test has made", []string{"default/c: it was made before the log begins"}, ErrLeftOut},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if err := checkLeftOut(row.omitted); !errors.Is(err, row.want) {
				t.Errorf("the error is %v, want %v", err, row.want)
			}
		})
	}
}
