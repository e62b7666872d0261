package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// cgroups makes the kubelet's root in every hierarchy; it refuses to start when one is missing.
func (l Layout) cgroups() error {
	for _, directory := range l.cgroupRoots() {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return fmt.Errorf("make a control group: %w", err)
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

// cgroupRoots are our directories, one a hierarchy: several with version 1, one with version 2.
func (l Layout) cgroupRoots() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{filepath.Join(root, l.own())}
	}
	hierarchies, _ := filepath.Glob(root + "/*")
	var directories []string
	for _, hierarchy := range hierarchies { // some are symbolic links to others
		if info, err := os.Stat(hierarchy); err == nil && info.IsDir() {
			directories = append(directories, filepath.Join(hierarchy, l.own()))
		}
	}
	return directories
}
