package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// network makes the node's own bridge, and the routes that keep Service addresses on it.
func (l Layout) network(ctx context.Context, families Families) error {
	if families == DualStack {
		if err := checkNAT(ctx); err != nil {
			return err
		}
	}
	commands := [][]string{{"link", "add", nodeBridge, "type", "bridge"}}
	for _, a := range families.all() {
		commands = append(commands, a.address())
	}
	commands = append(commands, []string{"link", "set", nodeBridge, "up"})
	for _, a := range families.all() { // where kube-proxy looks for what it translates
		commands = append(commands, []string{a.option, "route", "replace", a.services, "dev", nodeBridge})
	}
	for _, arguments := range commands {
		if _, err := do(ctx, "ip", arguments...); err != nil {
			return err
		}
	}
	for _, a := range families.all() {
		if err := os.WriteFile(a.forwarding, []byte("1\n"), 0o644); err != nil {
			return fmt.Errorf("have the kernel forward packets: %w", err)
		}
	}
	return nil
}

// checkNAT asks the kernel, without changing anything, whether it translates addresses of IPv6, as kube-proxy needs it.
func checkNAT(ctx context.Context) error {
	const rules = "table ip6 s2z { chain check { type nat hook postrouting priority 100; masquerade; }; }\n"
	if _, err := doWith(ctx, rules, "nft", "--check", "-f", "-"); err != nil {
		return fmt.Errorf("%w: the kernel cannot translate its addresses: %w", errNoIPv6, err)
	}
	return nil
}

// address gives the node's address to its bridge. One of IPv6 could be used only when nobody else has claimed it for a second,
// and there is nobody on the bridge.
func (a addressing) address() []string {
	arguments := []string{a.option, "addr", "add", a.link, "dev", nodeBridge}
	if a == ipv6 {
		arguments = append(arguments, "nodad")
	}
	return arguments
}

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// callers is the control group that takes the processes of a container's own group.
const callers = "s2z-callers"

// cgroups makes the kubelet's root in every hierarchy; it refuses to start when one is missing, or lacks a controller.
func (l Layout) cgroups() error {
	unified := isUnified()
	if unified {
		if err := delegate(cgroupRoot); err != nil {
			return err
		}
	}
	for _, directory := range l.cgroupRoots() {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return fmt.Errorf("make a control group: %w", err)
		}
		if unified {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // a new cpuset has no processor until it is given one
			content, err := os.ReadFile(filepath.Join(filepath.Dir(directory), file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(directory, file), content, 0o644)
			}
			if err != nil {
				return fmt.Errorf("set %s of a control group: %w", file, err)
			}
		}
	}
	return nil
}

// delegate has a group of version 2 give all its controllers to the groups below it. The kernel refuses that to a group with processes
// of its own, such as that of a container, so these move to a group below. Only the root of the machine may keep its processes.
func delegate(group string) error {
	content, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the controllers of a control group: %w", err)
	}
	controllers := strings.Fields(string(content))
	if len(controllers) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(group, "cgroup.type")); err == nil { // only the root of the machine has none
		if err := moveProcesses(group, filepath.Join(group, callers)); err != nil {
			return err
		}
	}
	enabled := []byte("+" + strings.Join(controllers, " +"))
	return os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), enabled, 0o644)
}

// moveProcesses moves the processes of a control group of version 2 to another, which it makes.
func moveProcesses(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make a control group: %w", err)
	}
	for range 10 { // a process may start another before it is moved
		content, err := os.ReadFile(filepath.Join(from, "cgroup.procs"))
		if err != nil {
			return fmt.Errorf("read the processes of a control group: %w", err)
		}
		processes := strings.Fields(string(content))
		if len(processes) == 0 {
			return nil
		}
		for _, process := range processes {
			err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(process), 0o644)
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("move process %s to the control group %s: %w", process, to, err)
			}
		}
	}
	return nil
}

// isUnified reports whether this machine has control groups of version 2 only.
func isUnified() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// cgroupRoots are our directories, one a hierarchy: several with version 1, one with version 2.
func (l Layout) cgroupRoots() []string {
	if isUnified() {
		return []string{filepath.Join(cgroupRoot, l.own())}
	}
	hierarchies, _ := filepath.Glob(cgroupRoot + "/*")
	var directories []string
	for _, hierarchy := range hierarchies { // some are symbolic links to others
		if info, err := os.Stat(hierarchy); err == nil && info.IsDir() {
			directories = append(directories, filepath.Join(hierarchy, l.own()))
		}
	}
	return directories
}
