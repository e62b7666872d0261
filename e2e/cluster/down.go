package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Down ends every process and removes every mount, link, rule and control group of the cluster, also of one that came up only
// in part or crashed. The logs stay.
func (l Layout) Down(ctx context.Context, progress *Progress) error {
	if _, err := os.Stat(l.Run); errors.Is(err, fs.ErrNotExist) {
		progress.Say("no cluster is running")
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("this must be run as root")
	}
	progress.Say("take the cluster down")
	for _, pids := range []string{"kubelet", "provisioner", "coredns", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"} {
		l.kill(pids)
	}
	// The kubelet is gone: nothing starts a container again. The shims hold the containers, and their cgroups name them.
	l.killContainers()
	l.kill("containerd")
	failures := []error{l.unmount(), l.removeNetwork(ctx), removeCgroups()}
	failures = append(failures, os.RemoveAll(l.Run))
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("take the cluster down: %w", err)
	}
	progress.Say("down; the logs are in %s", l.Logs())
	return nil
}

// kill ends a component and waits until it is gone.
func (l Layout) kill(name string) {
	pid, up := l.process(l.run("pids", name))
	if !up {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	awaitEnd(pid)
}

// ours tells whether a process has one of the folders in its command line: a recorded number may be another's by now.
func ours(pid int, folders ...string) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && slices.ContainsFunc(folders, func(folder string) bool { return strings.Contains(string(cmdline), folder) })
}

// killContainers ends every process in our control groups and the shims beside them.
func (l Layout) killContainers() {
	for range 3 { // a shim may start one more process before it dies
		for _, root := range cgroupRoots() {
			_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() || entry.Name() != "cgroup.procs" {
					return nil //nolint:nilerr // a group that has just gone holds no process
				}
				content, _ := os.ReadFile(path)
				for _, field := range strings.Fields(string(content)) {
					if pid, err := strconv.Atoi(field); err == nil {
						_ = syscall.Kill(pid, syscall.SIGKILL)
						awaitEnd(pid)
					}
				}
				return nil
			})
		}
		for _, pid := range l.shims() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			awaitEnd(pid)
		}
	}
}

// shims are containerd's processes beside each pod.
func (l Layout) shims() []int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []int
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(content), "containerd-shim") && strings.Contains(string(content), l.Run) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				found = append(found, pid)
			}
		}
	}
	return found
}

// awaitEnd waits until a killed process is gone, or is a zombie that its parent has to collect.
func awaitEnd(pid int) {
	for range 100 {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// unmount removes what is mounted below the run folder, the deepest first, and the network namespaces of pods.
func (l Layout) unmount() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			if strings.HasPrefix(fields[1], l.Run+"/") || strings.HasPrefix(fields[1], "/run/netns/cni-") {
				points = append(points, fields[1])
			}
		}
	}
	slices.Sort(points)
	slices.Reverse(points)
	var failures []error
	for _, point := range points {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			failures = append(failures, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	spaces, _ := filepath.Glob("/run/netns/cni-*")
	for _, space := range spaces {
		failures = append(failures, os.Remove(space))
	}
	return errors.Join(failures...)
}

// removeNetwork removes links, rules and the setting that network made, and what kube-proxy and the kubelet left.
func (l Layout) removeNetwork(ctx context.Context) error {
	_, _ = do(ctx, l.run("bin", "kubernetes"), "kube-proxy", "--cleanup")
	for _, table := range [][]string{{"inet", filterTable}, {"ip", "kube-proxy"}, {"ip6", "kube-proxy"}} {
		_, _ = do(ctx, "nft", append([]string{"delete", "table"}, table...)...) // most of them are not there
	}
	for _, link := range []string{podBridge, nodeBridge} {
		_, _ = do(ctx, "ip", "link", "delete", link)
	}
	before, err := os.ReadFile(l.run("ip_forward"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whether forwarding was permitted: %w", err)
	}
	if err := os.WriteFile(forwarding, before, 0o644); err != nil {
		return fmt.Errorf("put forwarding back: %w", err)
	}
	return nil
}

func removeCgroups() error {
	var failures []error
	for _, root := range cgroupRoots() {
		var directories []string
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				directories = append(directories, path)
			}
			return nil
		})
		slices.Reverse(directories)
		for _, directory := range directories {
			if err := syscall.Rmdir(directory); err != nil && !errors.Is(err, syscall.ENOENT) {
				failures = append(failures, fmt.Errorf("remove the control group %s: %w", directory, err))
			}
		}
	}
	return errors.Join(failures...)
}

// Status tells which components run.
func (l Layout) Status() (string, error) {
	if _, err := os.Stat(l.Run); errors.Is(err, fs.ErrNotExist) {
		return "no cluster is running\n", nil
	}
	pids, err := filepath.Glob(l.run("pids", "*"))
	if err != nil {
		return "", fmt.Errorf("list the components: %w", err)
	}
	var report strings.Builder
	for _, file := range pids {
		state := "down"
		if pid, up := l.process(file); up {
			state = fmt.Sprintf("up, process %d", pid)
		}
		fmt.Fprintf(&report, "%-24s %s\n", filepath.Base(file), state)
	}
	image, _ := l.OperandImage()
	fmt.Fprintf(&report, "export KUBECONFIG=%s POSTGRES_IMAGE=%s\n", l.Kubeconfig(), image)
	return report.String(), nil
}

// process is the recorded process of a component, and whether it runs.
func (l Layout) process(file string) (pid int, up bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(string(content))
	return pid, err == nil && ours(pid, l.Run, l.Cache)
}

// alive tells whether any component runs: after a reboot none does, and the run folder is still there.
func (l Layout) alive() bool {
	pids, _ := filepath.Glob(l.run("pids", "*"))
	return slices.ContainsFunc(pids, func(file string) bool { _, up := l.process(file); return up })
}

// OperandImage is the name of the PostgreSQL image that the running cluster has.
func (l Layout) OperandImage() (string, error) {
	image, err := os.ReadFile(l.run("postgres-image"))
	if err != nil {
		return "", fmt.Errorf("read the name of the PostgreSQL image: %w", err)
	}
	return string(image), nil
}
