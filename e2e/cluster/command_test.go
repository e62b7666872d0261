package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// program builds the command and returns it in a folder that every user may read.
func program(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/var/tmp", "life") // short enough for sockets, and on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(folder, "cluster")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/cluster").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

func TestWithoutRootItSaysThatRootIsNeeded(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	binary := program(t)
	for _, arguments := range [][]string{{"up"}, {"down"}, {"postgres-files", "17"}} {
		command := exec.CommandContext(t.Context(), binary, arguments...)
		command.Dir = filepath.Dir(binary)
		command.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "SCALE_TO_ZERO_CACHE=" + t.TempDir() + "/cache",
		}
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "this must be run as root") {
			t.Errorf("%s: %v: %s", arguments, err, out)
		}
	}
}
