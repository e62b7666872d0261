package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticks is the unit of the times in /proc/PID/stat: USER_HZ, which is 100 on every Linux supported by Go (proc(5)).
const ticks = 10 * time.Millisecond

// Processes lists this machine's processes with a matching command line and a cgroup that contains all the words. It finds a
// pod's processes only if the node is this machine.
func Processes(match func(cmdline []string) bool, words ...string) []int {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var found []int
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || len(content) == 0 {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup"))
		if err != nil || !match(strings.Split(strings.TrimRight(string(content), "\x00"), "\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && !slices.ContainsFunc(words, lacking(string(cgroup))) {
			found = append(found, pid)
		}
	}
	return found
}

// InThisNetwork reports whether a process is in the network namespace of this one.
func InThisNetwork(pid int) bool {
	own, _ := os.Readlink("/proc/self/ns/net")
	other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	return err == nil && other == own
}

func lacking(text string) func(word string) bool {
	return func(word string) bool { return !strings.Contains(text, word) }
}

// ProcessorTime returns the user and system CPU time of a process.
func ProcessorTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the times of process %d: %w", pid, err)
	}
	// The command's name, in parentheses, may contain spaces: count fields after it (proc(5), fields 14 and 15).
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * ticks, nil
}

// Memory returns a process's resident memory, its anonymous part, and the peak resident memory, in MiB.
func Memory(pid int) (resident, anonymous, most float64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	kib := map[string]float64{}
	for text := range strings.Lines(string(content)) {
		if fields := strings.Fields(text); len(fields) > 1 {
			kib[fields[0]], _ = strconv.ParseFloat(fields[1], 64)
		}
	}
	return kib["VmRSS:"] / 1024, kib["RssAnon:"] / 1024, kib["VmHWM:"] / 1024, nil
}
