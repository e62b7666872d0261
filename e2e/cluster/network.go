package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// network makes the node's own bridge, the routes that keep Service addresses on it, and the rule that keeps pods in.
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
	for _, a := range families.all() { // what kube-proxy does not translate must not leave by the default route
		commands = append(commands, []string{a.option, "route", "replace", a.services, "dev", nodeBridge})
	}
	for _, arguments := range commands {
		if _, err := do(ctx, "ip", arguments...); err != nil {
			return err
		}
	}
	var settings []setting
	var outside []string
	for _, a := range families.all() {
		link, err := outsideInterface(ctx, a)
		if err != nil {
			return err
		}
		if link != "" {
			outside = append(outside, link)
		}
		settings = append(settings, a.forward(link)...)
	}
	if err := l.set(settings); err != nil {
		return err
	}
	if len(outside) == 0 {
		return nil
	}
	_, err := doWith(ctx, inside(outside), "nft", "-f", "-")
	return err
}

// checkNAT asks the kernel, without changing anything, whether it translates addresses of IPv6, as kube-proxy needs it.
func checkNAT(ctx context.Context) error {
	const rules = "table ip6 " + filterTable + " { chain check { type nat hook postrouting priority 100; masquerade; }; }\n"
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

// forward are the settings by which the kernel forwards packets of the family; link is where the default route leads. A machine
// that forwards IPv6 takes itself for a router and forgets the routes that routers have told it, unless it is told not to.
func (a addressing) forward(link string) []setting {
	settings := []setting{{a.forwarding, "1"}}
	if a != ipv6 || link == "" {
		return settings
	}
	const told, alsoForwarding = "1", "2"
	advertisements := "/proc/sys/net/ipv6/conf/" + link + "/accept_ra"
	if content, err := os.ReadFile(advertisements); err == nil && strings.TrimSpace(string(content)) == told {
		return append([]setting{{advertisements, alsoForwarding}}, settings...)
	}
	return settings
}

// inside is the rule that keeps pods in: nothing is forwarded from or to these interfaces. Priority 10 is behind kube-proxy's
// rules: before them it would swallow their rejects, and clients of a Service without endpoints would hang instead of being
// refused.
func inside(outside []string) string {
	var rules strings.Builder
	fmt.Fprintf(&rules, "table inet %s { chain inside { type filter hook forward priority 10; ", filterTable)
	slices.Sort(outside)
	for _, link := range slices.Compact(outside) {
		fmt.Fprintf(&rules, "oifname %[1]q drop; iifname %[1]q drop; ", link)
	}
	rules.WriteString("}; }\n")
	return rules.String()
}

// outsideInterface is the interface of the family's default route; empty if there is none.
func outsideInterface(ctx context.Context, a addressing) (string, error) {
	routes, err := do(ctx, "ip", a.option, "route", "show", "default")
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
