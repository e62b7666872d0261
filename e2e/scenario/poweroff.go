package scenario

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// ErrNotHere says that the processes of a pod cannot be seen from this machine.
var ErrNotHere = errors.New("the pod is not on this machine")

// IsPause reports whether a command line is that of a pod's pause process, which keeps the pod's network when its containers restart.
func IsPause(cmdline []string) bool { return path.Base(cmdline[0]) == "pause" }

// PowerOff stops the containers of a pod on this machine and cuts its network, as when its node loses its power: nobody refuses a
// connection, and nobody answers one. The function returned takes that back.
func PowerOff(ctx context.Context, pod types.UID) (func() error, error) {
	pauses := Processes(IsPause, string(pod))
	processes := Processes(func(cmdline []string) bool { return !IsPause(cmdline) }, string(pod))
	if len(pauses) != 1 || len(processes) == 0 {
		return nil, ErrNotHere
	}
	restore := func() error {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(drop(ctx, pauses[0], "--delete"), signal(processes, syscall.SIGCONT))
	}
	if err := errors.Join(signal(processes, syscall.SIGSTOP), drop(ctx, pauses[0], "--insert")); err != nil {
		return nil, errors.Join(err, restore())
	}
	return restore, nil
}

// KillPod kills every process of a pod on this machine.
func KillPod(pod types.UID) error {
	processes := Processes(func([]string) bool { return true }, string(pod))
	if len(processes) == 0 {
		return ErrNotHere
	}
	return signal(processes, syscall.SIGKILL)
}

// drop inserts or deletes the iptables rules that drop every packet in the network namespace of a process.
func drop(ctx context.Context, process int, verb string) error {
	var failed error
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		rule := exec.CommandContext(ctx, "nsenter", "--net", "--target", strconv.Itoa(process), "iptables", verb, chain, "--jump", "DROP")
		if out, err := rule.CombinedOutput(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("cut the pod's network: %w: %s", err, out))
		}
	}
	return failed
}

// signal passes over processes that have ended.
func signal(processes []int, which syscall.Signal) error {
	for _, process := range processes {
		if err := syscall.Kill(process, which); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("send %s to process %d: %w", which, process, err)
		}
	}
	return nil
}
