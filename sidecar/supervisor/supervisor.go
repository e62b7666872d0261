package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

const (
	// firstWait and lastWait bound the wait before a dead worker is restarted.
	firstWait, lastWait = 100 * time.Millisecond, 5 * time.Second
	// settled is how long a worker must have run for the wait to be reset.
	settled = 10 * time.Second
	// stopTimeout is how long a worker may take to exit after SIGTERM before it is killed.
	stopTimeout = 5 * time.Second
)

// supervisor runs one worker.
type supervisor struct {
	// command is the worker's program and arguments.
	command []string
	// environment is added to that of this process.
	environment []string
	// output receives the worker's stdout and stderr.
	output io.Writer
	// logger logs workers that died.
	logger *slog.Logger
}

// run keeps a worker running until the context ends. Then it sends SIGTERM at once and returns when the worker has
// exited.
func (s *supervisor) run(ctx context.Context) {
	wait := firstWait
	for ctx.Err() == nil {
		started := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		lasted := time.Since(started)
		if lasted >= settled {
			wait = firstWait
		}
		s.logger.Warn("the worker ended and is started again", "error", fmt.Sprint(err), "lasted", lasted.String(),
			"wait", wait.String())
		process.Pause(ctx, wait)
		wait = min(2*wait, lastWait)
	}
}

func (s *supervisor) once(ctx context.Context) error {
	command := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	command.Env = append(os.Environ(), s.environment...)
	command.Stdout, command.Stderr = s.output, s.output
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = stopTimeout
	if err := command.Run(); err != nil {
		return fmt.Errorf("run the worker: %w", err)
	}
	return errors.New("the worker returned")
}

// memoryLimit returns the worker's soft memory limit as a value of GOMEMLIMIT: three quarters of the container's limit
// in bytes, which leaves room for the supervisor and for memory that Go does not count. Without a limit it is empty.
func memoryLimit(container string) string {
	limit, err := strconv.ParseInt(container, 10, 64)
	if err != nil || limit <= 0 {
		return ""
	}
	return strconv.FormatInt(limit/4*3, 10)
}
