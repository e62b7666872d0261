package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// ErrElsewhere says that the node is not one that was made here.
var ErrElsewhere = errors.New("the cluster of KUBECONFIG was not made here")

// RestartNode kills the kubelet and containerd, and starts them again after meanwhile. Containers survive unless meanwhile kills
// them, as a restart of the machine does.
func (l Layout) RestartNode(ctx context.Context, meanwhile func() error) (err error) {
	if l.Another() {
		return ErrElsewhere
	}
	var killed []component
	defer func() {
		for _, c := range killed {
			err = errors.Join(err, l.startAgain(context.WithoutCancel(ctx), c))
		}
	}()
	for _, name := range []string{"containerd", "kubelet"} { // in the order in which they are started
		pid := l.components()[name]
		c, err := runningComponent(name, pid)
		if err != nil {
			return err
		}
		if err := kill(pid); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		killed = append(killed, c)
	}
	return meanwhile()
}

// startAgain starts a component until it stays, like systemd: the kubelet ends if containerd does not answer yet.
func (l Layout) startAgain(ctx context.Context, c component) error {
	const stays = 5 * time.Second
	var started time.Time
	return until(ctx, c.name, time.Minute, func(context.Context) error {
		if l.components()[c.name] == 0 {
			started = time.Now()
			if err := l.start(c); err != nil {
				return err
			}
		}
		if time.Since(started) < stays {
			return fmt.Errorf("%s was started %s ago", c.name, time.Since(started))
		}
		return nil
	})
}

// runningComponent reads what a component was started with.
func runningComponent(name string, pid int) (component, error) {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return component{}, fmt.Errorf("find the program of %s: %w", name, err)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return component{}, fmt.Errorf("read the arguments of %s: %w", name, err)
	}
	arguments := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	return component{name, program, arguments[1:]}, nil
}

// kill kills a process and waits until it has ended.
func kill(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(time.Minute); !zombie(pid); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not end", pid)
		}
	}
	return nil
}
