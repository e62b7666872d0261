package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTraces_writesAFileForEveryCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	l := Layout{Run: filepath.Join(t.TempDir(), "run")}
	log := must(os.ReadFile("../audit/testdata/traces.log"))(t)
	if err := writeFile(l.auditLog(), string(log)); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(t.TempDir(), "traces")
	report, err := l.Traces(directory)
	if err != nil || !strings.HasPrefix(report, "traces: 2 clusters, ") {
		t.Errorf("%q, %v", report, err)
	}
	files := must(filepath.Glob(filepath.Join(directory, "story.blue.*.trace")))(t)
	if len(files) != 2 {
		t.Errorf("the files are %q", files)
	}
}
