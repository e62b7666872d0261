package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errEnded says that a component ended by itself.
var errEnded = errors.New("ended by itself")

// ours reports whether the command line of a process contains the run folder: another process may have got a recorded process ID. A
// zombie has no command line.
func (l Layout) ours(pid int) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(cmdline), l.Run+"/")
}

// components tells, by name, which of the recorded processes live; the others have the number 0.
func (l Layout) components() map[string]int {
	found := map[string]int{}
	files, _ := filepath.Glob(l.run("pids", "*"))
	for _, file := range files {
		name := filepath.Base(file)
		found[name] = 0
		content, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(string(content)); err == nil && l.ours(pid) {
			found[name] = pid
		}
	}
	return found
}

// ended is an error that shows the end of the log of a component that is not there any more.
func (l Layout) ended() error {
	for name, pid := range l.components() {
		if pid == 0 {
			file := filepath.Join(l.Logs(), name+".log")
			return fmt.Errorf("%s %w; the end of %s: %s", name, errEnded, file, lastLines(file))
		}
	}
	return nil
}

// lastLines returns at most the last 2000 bytes of a file.
func lastLines(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-2000):])
}

// processes are the components, the shims of containerd, and what runs in containers, which our control groups tell.
func (l Layout) processes() []int {
	found := map[int]bool{}
	for _, pid := range l.components() {
		found[pid] = true
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(content), "containerd-shim") && strings.Contains(string(content), l.Run+"/") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			found[pid] = true
		}
	}
	var groups []string
	for _, node := range l.nodes() {
		groups = append(groups, node.cgroupRoots()...)
	}
	for _, root := range groups {
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.Name() != "cgroup.procs" {
				return nil // a group that has just gone holds no process
			}
			content, _ := os.ReadFile(path)
			for _, field := range strings.Fields(string(content)) {
				pid, _ := strconv.Atoi(field)
				found[pid] = true
			}
			return nil
		})
	}
	delete(found, 0) // no process has this number
	var pids []int
	for pid := range found {
		if !zombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// zombie reports whether a process has ended, even if its parent has not yet waited for it.
func zombie(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(status), ") Z ")
}

// killAll ends every process of the cluster. Nothing is asked to stop: all that it would save is removed afterwards.
func (l Layout) killAll() error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		pids := l.processes() // again and again: a shim may start one more process before it dies
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
