package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// packages are Debian's, by the program that shows that they are installed.
var packages = map[string]string{
	"containerd": "containerd", "runc": "runc", "/usr/lib/cni/bridge": "containernetworking-plugins",
	"iptables": "iptables", "nft": "nftables", "conntrack": "conntrack", "modprobe": "kmod", "ip": "iproute2",
}

// Bytes of disk that are needed when everything is built, and when it has to be built.
const (
	warmSpace = 6 << 30
	coldSpace = 15 << 30
)

// errNotRoot says what root is needed for.
var errNotRoot = errors.New("this must be run as root: it makes network namespaces, mounts and control groups")

// checkMachine says everything that is missing before anything is touched.
func (l Layout) checkMachine(ctx context.Context, families Families) error {
	var problems []error
	if os.Geteuid() != 0 {
		problems = append(problems, errNotRoot)
	}
	if err := os.MkdirAll(l.Cache, 0o755); err != nil {
		return errors.Join(append(problems, fmt.Errorf("make the cache: %w", err))...)
	}
	if err := os.MkdirAll(filepath.Dir(l.Run), 0o755); err != nil {
		return errors.Join(append(problems, fmt.Errorf("make the folder of the run folder: %w", err))...)
	}
	if longest := l.socket() + ".ttrpc"; len(longest) > 107 { // what the address of a Unix socket holds
		problems = append(problems, fmt.Errorf("the run folder %s has too long a name for sockets: SCALE_TO_ZERO_RUN names another", l.Run))
	}
	if families == DualStack {
		problems = append(problems, checkIPv6("/proc"))
	}
	need, folders := uint64(warmSpace), []string{l.Cache, filepath.Dir(l.Run)}
	if !l.built() {
		need = coldSpace
		if builds, err := do(ctx, "go", "env", "GOCACHE"); err == nil { // where most of a cold build goes
			folders = append(folders, strings.TrimSpace(builds))
		}
	}
	for _, folder := range folders {
		problems = append(problems, space(folder, need))
	}
	// A shell made by `su` has root's rights and a user's PATH; kube-proxy and the kubelet look for programs there, too.
	if path := os.Getenv("PATH"); !slices.Contains(filepath.SplitList(path), "/usr/sbin") {
		problems = append(problems, os.Setenv("PATH", path+":/usr/sbin:/sbin"))
	}
	return errors.Join(problems...)
}

// built tells whether every program has been compiled before, though perhaps of older sources.
func (l Layout) built() bool {
	for _, program := range []string{"kubernetes", "node-services", "operator"} {
		if found, _ := filepath.Glob(filepath.Join(l.Cache, program+"-*")); len(found) == 0 {
			return false
		}
	}
	return true
}

// space is an error when less than need bytes are free where the folder is.
func space(folder string, need uint64) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(folder, &disk); err != nil {
		return nil // not every file system tells; then there may be enough
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < need {
		return fmt.Errorf("%s has %d GiB of free disk space, %d are needed (SCALE_TO_ZERO_CACHE, SCALE_TO_ZERO_RUN and GOCACHE name other places)",
			folder, free>>30, need>>30)
	}
	return nil
}

// installPackages installs what is missing. Debian's packages would start their services, which policy-rc.d forbids.
func installPackages(ctx context.Context, progress *Progress) error {
	var missing []string
	for program, name := range packages {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing are %s, and there is no apt-get to install them with: this needs a Debian machine", strings.Join(missing, ", "))
	}
	progress.Say("install Debian packages: %s", strings.Join(missing, " "))
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return fmt.Errorf("keep packages from starting services: %w", err)
		}
		defer func() { _ = os.Remove(policy) }()
	}
	if _, err := do(ctx, "apt-get", "update", "-qq"); err != nil {
		return err
	}
	_, err := do(ctx, "env", append([]string{
		"DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends",
	}, missing...)...)
	return err
}
