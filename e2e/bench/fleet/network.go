package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// enclose runs this command again in a network of its own.
func enclose(ctx context.Context, o options) error {
	arguments := append(os.Args[1:len(os.Args):len(os.Args)],
		"-inside", "-logs", o.logs, "-kubernetes", o.programs.kubernetes, "-plugin", o.programs.plugin, "-definitions", o.programs.definitions)
	command := exec.CommandContext(ctx, "/proc/self/exe", arguments...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Cancel, command.WaitDelay = func() error { return command.Process.Signal(syscall.SIGTERM) }, time.Minute
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		command.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	if err := command.Run(); err != nil {
		return fmt.Errorf("run in a network of its own: %w", err)
	}
	return nil
}

// raiseLoopback makes 127.0.0.1 work, which is all there is in a new network.
func raiseLoopback(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("raise lo: %w: %s", err, out)
	}
	return nil
}

// descriptors is how many file descriptors a process may have.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(limit.Max)
}

const (
	// led is how many Services of a cluster with one instance lead to the gateway: -rw and -r.
	led = 2
	// kept is how many descriptors the plugin keeps from its ports, for clients, the operator and the API server.
	kept = 1024
	// allPorts is how many ports the plugin has by default.
	allPorts = 20_000
)

// fitting is for how many clusters there are ports and descriptors.
func fitting() int { return min(descriptors()-kept, allPorts) / led }

// until asks again and again until the answer is yes, with a pause between.
func until(ctx context.Context, what string, within, pause time.Duration, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s: not within %s", what, within))
	defer cancel()
	for {
		yes, err := is()
		if err != nil || yes {
			return err
		}
		if err := scenario.Rest(ctx, pause); err != nil {
			return err
		}
	}
}
