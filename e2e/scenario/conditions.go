package scenario

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"
)

var (
	processor = regexp.MustCompile(`model name\s*:\s*(.+)`)
	memory    = regexp.MustCompile(`MemTotal:\s*(\d+) kB`)
	loads     = regexp.MustCompile(`^(\S+ \S+ \S+)`)
)

// Conditions describes in one line the commit, the time, the machine and the load to which figures belong.
func Conditions(ctx context.Context) string {
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		commit = []byte("unknown")
	}
	return fmt.Sprintf("commit %s, %s, load averages %s, %d processors (%s), %s KiB of memory, %s",
		strings.TrimSpace(string(commit)), time.Now().UTC().Format(time.RFC3339), found(loads, "/proc/loadavg"),
		runtime.NumCPU(), found(processor, "/proc/cpuinfo"), found(memory, "/proc/meminfo"), found(loads, "/proc/version"))
}

// found returns what a file of the kernel has in the first group of a pattern.
func found(pattern *regexp.Regexp, file string) string {
	content, _ := os.ReadFile(file) // what cannot be read is unknown as well
	if match := pattern.FindSubmatch(content); match != nil {
		return string(match[1])
	}
	return "unknown"
}
