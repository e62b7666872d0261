package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A group with processes, as that of a container is, can give its controllers to others once its processes have moved.
func TestDelegate_aGroupWithProcesses(t *testing.T) {
	group := cgroupWithControllers(t)
	directory := must(os.Open(group))(t)
	defer func() { _ = directory.Close() }()
	process := exec.CommandContext(t.Context(), "sleep", "600")
	process.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(directory.Fd())}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Wait() }) // the test's context ends it
	content := func(group, file string) []string {
		t.Helper()
		return strings.Fields(string(must(os.ReadFile(filepath.Join(group, file)))(t)))
	}
	controllers := content(group, "cgroup.controllers")
	err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+controllers[0]), 0o644)
	if !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("the kernel answers %v while the group has a process: this shows nothing", err)
	}

	for range 2 { // as `up` does each time
		if err := delegate(group); err != nil {
			t.Fatal(err)
		}
	}
	below := filepath.Join(group, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := content(below, "cgroup.controllers"); strings.Join(got, " ") != strings.Join(controllers, " ") {
		t.Errorf("a group below has the controllers %v, want %v", got, controllers)
	}
	if got := content(filepath.Join(group, callers), "cgroup.procs"); len(got) != 1 || got[0] != fmt.Sprint(process.Process.Pid) {
		t.Errorf("the processes %v have moved, want %d", got, process.Process.Pid)
	}
}

// cgroupWithControllers makes a control group of version 2 that has controllers. It is removed when the test has ended.
func cgroupWithControllers(t *testing.T) string {
	t.Helper()
	root := ""
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/mounts"))(t))) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			root = fields[1]
		}
	}
	controllers, _ := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if _, err := os.Stat(filepath.Join(root, "cgroup.type")); root == "" || len(controllers) == 0 || os.Geteuid() != 0 || err == nil {
		t.Skip("this needs root, and the machine's own control groups of version 2 with a controller")
	}
	subtree := filepath.Join(root, "cgroup.subtree_control")
	before := string(must(os.ReadFile(subtree))(t))
	if err := delegate(root); err != nil {
		t.Fatal(err)
	}
	group := must(os.MkdirTemp(root, "s2z-test"))(t)
	t.Cleanup(func() {
		for _, directory := range []string{"below", callers, ""} {
			if err := syscall.Rmdir(filepath.Join(group, directory)); err != nil && !errors.Is(err, syscall.ENOENT) {
				t.Error(err)
			}
		}
		for _, controller := range strings.Fields(string(controllers)) {
			if !strings.Contains(before, controller) {
				_ = os.WriteFile(subtree, []byte("-"+controller), 0o644)
			}
		}
	})
	return group
}
