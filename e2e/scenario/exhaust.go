package scenario

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// memoryGroup matches the line of /proc/PID/cgroup with the control group of a process' memory, in either version.
var memoryGroup = regexp.MustCompile(`(?m)^(?:\d+:(memory)|0:):(/.*)$`)

// ExhaustMemory makes the kernel kill a process of this machine for lack of memory: another process in its container's control group
// takes all that there is. The kernel spares that one, because the kubelet gives the processes of containers a higher oom_score_adj.
func ExhaustMemory(ctx context.Context, process int) error {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", process))
	if err != nil {
		return fmt.Errorf("find the control group: %w", err)
	}
	found := memoryGroup.FindAllStringSubmatch(string(content), -1)
	if found == nil {
		return fmt.Errorf("process %d has no control group for its memory: %s", process, content)
	}
	group := filepath.Join("/sys/fs/cgroup", found[0][1], found[0][2]) // that of version 2 stands last
	const most = 2 << 20                                               // KiB, should there be no limit
	taker := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(`ulimit -v %d && echo $$ >%s/cgroup.procs && exec tail /dev/zero`, most, group))
	if err := taker.Start(); err != nil {
		return fmt.Errorf("take the memory: %w", err)
	}
	taken := make(chan error, 1)
	go func() { taken <- taker.Wait() }()
	defer func() { _ = taker.Process.Kill() }()
	for ended := false; ; {
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", process))
		if err != nil || len(cmdline) == 0 {
			return nil
		}
		if ended {
			return fmt.Errorf("process %d was not killed for its container's memory", process)
		}
		select {
		case <-taken:
			ended = true
		case <-time.After(10 * time.Millisecond):
		}
	}
}
