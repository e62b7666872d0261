package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces is where iproute2 keeps network namespaces that have names.
const namespaces = "/run/netns/"

// makeNetwork makes the network of a cluster or of its second node.
func (l Layout) makeNetwork(ctx context.Context) error {
	if l.hasNetwork() {
		return nil
	}
	if _, err := do(ctx, "ip", "netns", "add", l.own()); err != nil {
		return err
	}
	_, err := do(ctx, "ip", "-n", l.own(), "link", "set", "lo", "up")
	return err
}

// deleteNetwork removes the name of the network; the kernel removes the network once no process is in it.
func (l Layout) deleteNetwork(ctx context.Context) error {
	if !l.hasNetwork() {
		return nil
	}
	_, err := do(ctx, "ip", "netns", "delete", l.own())
	return err
}

func (l Layout) hasNetwork() bool {
	_, err := os.Stat(namespaces + l.own())
	return err == nil
}

// Enter moves this process into the network of the cluster, by replacing it with the same program and arguments. It returns if the
// process is there already, or if there is no such network.
func (l Layout) Enter() error {
	wanted, err := os.Open(namespaces + l.own())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the network %s: %w", l.own(), err)
	}
	defer func() { _ = wanted.Close() }()
	there, err := wanted.Stat()
	here, failed := os.Stat("/proc/self/ns/net")
	if err := errors.Join(err, failed); err != nil || os.SameFile(here, there) {
		return err
	}
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	runtime.LockOSThread() // a thread is in a network; what it executes has no other
	defer runtime.UnlockOSThread()
	if err := unix.Setns(int(wanted.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network %s: %w", l.own(), err)
	}
	if err := syscall.Exec(program, os.Args, os.Environ()); err != nil {
		return fmt.Errorf("run this program in the network %s: %w", l.own(), err)
	}
	return nil
}

// BecomeKubectl is Become with kubectl.
func (l Layout) BecomeKubectl(arguments []string) error {
	return l.Become(l.kubernetes(), append([]string{"kubectl"}, arguments...)...)
}

// Become replaces this process with a program that has the cluster's KUBECONFIG; it returns only on failure. Call Enter first, or the
// program cannot reach the cluster.
func (l Layout) Become(program string, arguments ...string) error {
	if err := l.exists(); err != nil {
		return err
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("find %s: %w", program, err)
	}
	if err := os.Setenv("KUBECONFIG", l.Kubeconfig()); err != nil {
		return fmt.Errorf("set KUBECONFIG: %w", err)
	}
	if err := syscall.Exec(path, append([]string{program}, arguments...), os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}
