package cnpgi

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAddPreStopHook(t *testing.T) {
	t.Parallel()
	own := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 9}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other"}, {Name: "postgres"}}}}
	addPreStopHook(pod)
	if pod.Spec.Containers[0].Lifecycle != nil {
		t.Error("another container got a hook")
	}
	hook := pod.Spec.Containers[1].Lifecycle.PreStop.Exec
	if hook == nil {
		t.Fatal("PostgreSQL's container has no hook")
	}
	directory := t.TempDir()
	for _, row := range []struct {
		rule string
		file string
		said string
	}{
		{"without the file it ends at once", "", ""},
		{"with it, it sleeps", markerFile, "sleep 2"},
	} {
		if row.file != "" {
			if err := os.WriteFile(filepath.Join(directory, row.file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		command := exec.CommandContext(t.Context(), hook.Command[0], hook.Command[1], strings.ReplaceAll(hook.Command[2], "exec sleep", "exec echo sleep"))
		command.Env = []string{"PGHOST=" + directory, "PATH=/usr/bin:/bin"}
		out, err := command.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != row.said {
			t.Errorf("%s: it did %q (%v), want %q", row.rule, got, err, row.said)
		}
	}
	pod.Spec.Containers[1].Lifecycle = own
	addPreStopHook(pod)
	if pod.Spec.Containers[1].Lifecycle.PreStop.Sleep == nil {
		t.Error("a hook that was there was replaced")
	}
}
