// Command sidebyside runs shell commands at the same time. It prints what they print whole line by whole line, so that events of
// `go test -json` stay events, and fails if one of them does.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/cnpg-i/scale-to-zero/e2e/program"
)

func main() {
	program.Run("sidebyside", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

// run runs every command to its end.
func run(ctx context.Context, commands []string, out io.Writer) error {
	if len(commands) == 0 {
		return errors.New("there is no command: usage: sidebyside COMMAND, and more of them")
	}
	failures := make([]error, len(commands))
	var group sync.WaitGroup
	var writing sync.Mutex
	for i, command := range commands {
		group.Go(func() {
			if err := one(ctx, command, &writing, out); err != nil {
				failures[i] = fmt.Errorf("command %d of %d: %w", i+1, len(commands), err)
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}

// one runs a command, and passes its lines on.
func one(ctx context.Context, command string, writing *sync.Mutex, out io.Writer) error {
	shell := exec.CommandContext(ctx, "bash", "-c", command)
	shell.Stderr = os.Stderr
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // test2json has its children ignore an interrupt
	shell.Cancel = func() error { return syscall.Kill(-shell.Process.Pid, syscall.SIGTERM) }
	printed, err := shell.StdoutPipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	if err := shell.Start(); err != nil {
		return fmt.Errorf("start it: %w", err)
	}
	return errors.Join(lines(printed, writing, out), shell.Wait())
}

// lines copies lines, however long, each at once.
func lines(printed io.Reader, writing *sync.Mutex, out io.Writer) error {
	reader := bufio.NewReader(printed)
	for {
		line, err := reader.ReadBytes('\n')
		writing.Lock()
		_, failed := out.Write(line)
		writing.Unlock()
		if failed != nil || errors.Is(err, io.EOF) {
			return failed
		}
		if err != nil {
			return fmt.Errorf("read what it prints: %w", err)
		}
	}
}
