package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Bytes of disk that the run needs, and that the programs, Go's compiler and its modules need before anything is built.
const (
	runSpace     = 6 << 30
	programSpace = 3 << 30
	compileSpace = 10 << 30
	moduleSpace  = 3 << 30
)

// errNotRoot says what root is needed for.
var errNotRoot = errors.New("this must be run as root: it makes network namespaces, mounts and control groups")

// checkMachine says everything that is missing before anything is touched.
func (l Layout) checkMachine(ctx context.Context, families Families) error {
	var problems []error
	if os.Geteuid() != 0 {
		problems = append(problems, errNotRoot)
	}
	if err := errors.Join(os.MkdirAll(l.Cache, 0o755), os.MkdirAll(filepath.Dir(l.Run), 0o755)); err != nil {
		return errors.Join(append(problems, fmt.Errorf("make the folders of the cache and of the run: %w", err))...)
	}
	if longest := l.socket() + ".ttrpc"; len(longest) > 107 { // what the address of a Unix socket holds
		problems = append(problems, fmt.Errorf("the run folder %s has too long a name for sockets: SCALE_TO_ZERO_RUN names another", l.Run))
	}
	if families == DualStack {
		problems = append(problems, checkIPv6("/proc"))
	}
	needs := map[string]uint64{filepath.Dir(l.Run): runSpace}
	if !l.built() {
		needs[l.Cache] += programSpace
		for variable, bytes := range map[string]uint64{"GOCACHE": compileSpace, "GOMODCACHE": moduleSpace} {
			if folder, err := do(ctx, "go", "env", variable); err == nil {
				needs[strings.TrimSpace(folder)] += bytes
			}
		}
	}
	problems = append(problems, space(needs))
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

// space is an error when a disk has less space than the folders on it need, in bytes. A folder that does not exist yet will be where
// the first folder above it is.
func space(needs map[string]uint64) error {
	free, needed, folders := map[uint64]uint64{}, map[uint64]uint64{}, map[uint64][]string{} // by the disk
	for _, folder := range slices.Sorted(maps.Keys(needs)) {
		there := folder
		for there != "/" && errors.Is(syscall.Access(there, 0), syscall.ENOENT) {
			there = filepath.Dir(there)
		}
		var file syscall.Stat_t
		var system syscall.Statfs_t
		if syscall.Stat(there, &file) != nil || syscall.Statfs(there, &system) != nil {
			continue // not every file system tells; then there may be enough
		}
		free[file.Dev] = system.Bavail * uint64(system.Bsize)
		needed[file.Dev] += needs[folder]
		folders[file.Dev] = append(folders[file.Dev], folder)
	}
	var problem error
	for disk, need := range needed {
		if free[disk] < need {
			problem = errors.Join(problem, fmt.Errorf("the disk of %s has %d GiB of free space, %d are needed "+
				"(SCALE_TO_ZERO_CACHE, SCALE_TO_ZERO_RUN, GOCACHE and GOMODCACHE name other places)",
				strings.Join(folders[disk], ", "), free[disk]>>30, need>>30))
		}
	}
	return problem
}

// installPackages installs the packages whose programs are missing. Debian's packages would start their services, which policy-rc.d forbids.
func installPackages(ctx context.Context, progress *Progress, packages map[string]string) error {
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
