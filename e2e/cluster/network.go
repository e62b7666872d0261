package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const forwarding = "/proc/sys/net/ipv4/ip_forward"

// network makes the node's own bridge, the route that keeps Service addresses on it, and the rule that keeps pods in.
func (l Layout) network(ctx context.Context) error {
	for _, arguments := range [][]string{
		{"link", "add", nodeBridge, "type", "bridge"},
		{"addr", "add", nodeNetwork, "dev", nodeBridge},
		{"link", "set", nodeBridge, "up"},
		// What kube-proxy does not translate must not leave by the default route.
		{"route", "replace", serviceRange, "dev", nodeBridge},
	} {
		if _, err := do(ctx, "ip", arguments...); err != nil {
			return err
		}
	}
	before, err := os.ReadFile(forwarding)
	if err != nil {
		return fmt.Errorf("read %s: %w", forwarding, err)
	}
	if err := writeFile(l.run("ip_forward"), string(before)); err != nil {
		return err
	}
	if err := os.WriteFile(forwarding, []byte("1\n"), 0o644); err != nil {
		return fmt.Errorf("permit forwarding: %w", err)
	}
	outside, err := outsideInterface(ctx)
	if err != nil || outside == "" {
		return err
	}
	// Priority 10 is behind kube-proxy's rules: before them it would swallow their rejects, and clients of a Service without
	// endpoints would hang instead of being refused.
	rules := fmt.Sprintf("table inet %[1]s { chain inside { type filter hook forward priority 10; oifname %[2]q drop; iifname %[2]q drop; }; }\n",
		filterTable, outside)
	_, err = doWith(ctx, rules, "nft", "-f", "-")
	return err
}

// outsideInterface is the interface of the default route; empty if there is none.
func outsideInterface(ctx context.Context) (string, error) {
	routes, err := do(ctx, "ip", "route", "show", "default")
	if err != nil {
		return "", err
	}
	fields := strings.Fields(routes)
	for i, field := range fields {
		if field == "dev" && i+1 < len(fields) {
			return fields[i+1], nil
		}
	}
	return "", nil
}

// cgroups makes the kubelet's root in every hierarchy; it refuses to start when one is missing.
func cgroups() error {
	for _, directory := range cgroupRoots() {
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
func cgroupRoots() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{filepath.Join(root, cgroupName)}
	}
	hierarchies, _ := filepath.Glob(root + "/*")
	var directories []string
	for _, hierarchy := range hierarchies { // some are symbolic links to others
		if info, err := os.Stat(hierarchy); err == nil && info.IsDir() {
			directories = append(directories, filepath.Join(hierarchy, cgroupName))
		}
	}
	return directories
}
