package cluster

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestWhatNeedsAClusterSaysThatThereIsNone(t *testing.T) {
	t.Parallel()
	l := Layout{Run: filepath.Join(t.TempDir(), "run")}
	for name, try := range map[string]func() error{
		"status":         func() error { _, err := l.Status(); return err },
		"postgres-image": func() error { _, err := l.OperandImage(); return err },
		"load":           func() error { return l.Load(t.Context(), "plugin.tar") },
		"tag":            func() error { return l.Tag(t.Context(), "one", "other") },
		"kubectl":        func() error { return l.BecomeKubectl([]string{"get", "pods"}) },
	} {
		if err := try(); !errors.Is(err, ErrDown) {
			t.Errorf("%s: %v, want ErrDown", name, err)
		}
	}
}
