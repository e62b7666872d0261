package cluster_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestInterruptedUp presses Ctrl-C, which a terminal sends to the command and to its children alike, while a cluster is made:
// nothing may be left of it.
func TestInterruptedUp(t *testing.T) {
	if os.Getenv("E2E_CLUSTER") == "" {
		t.Skip("E2E_CLUSTER=1 makes real clusters")
	}
	binary := program(t)
	folder := filepath.Dir(binary)
	t.Setenv("SCALE_TO_ZERO_RUN", filepath.Join(folder, "run"))
	for _, row := range []struct{ rule, last string }{
		{"while the components start it leaves nothing", "start Kubernetes"},
		{"while the API server starts it leaves nothing", "containerd has the images"},
		{"while the node comes up it leaves nothing", "the API server is ready"},
		{"while the operator starts it leaves nothing", "the node is ready"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			before := look(t, folder)
			said, err := interrupt(t, binary, row.last)
			if err == nil || !strings.Contains(said, "context canceled") {
				t.Errorf("it ended with %v and said:\n%s", err, said)
			}
			if diff := cmp.Diff(before, look(t, folder)); diff != "" {
				t.Errorf("what it left or took (-before +after):\n%s", diff)
			}
			if _, err := os.Stat(filepath.Join(folder, "run")); !os.IsNotExist(err) {
				t.Errorf("the run folder is still there: %v", err)
			}
		})
	}
}

// interrupt runs `up`, sends it SIGINT when it has said a line, and returns everything that it said.
func interrupt(t *testing.T, binary, line string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), binary, "up")
	command.Dir = ".."
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	lines := bufio.NewScanner(io.TeeReader(output, &said))
	for lines.Scan() {
		if strings.Contains(lines.Text(), line) {
			if err := syscall.Kill(-command.Process.Pid, syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	if err := command.Wait(); err != nil {
		return said.String(), fmt.Errorf("run up: %w", err)
	}
	return said.String(), nil
}
