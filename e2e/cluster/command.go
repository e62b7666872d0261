package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// do runs a program and returns what it printed; an error says what the program said.
func do(ctx context.Context, name string, arguments ...string) (string, error) {
	return doWith(ctx, "", name, arguments...)
}

// doWith runs a program with the given standard input.
func doWith(ctx context.Context, input, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	var out, complaint bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &complaint
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("run %s %s: %w: %s", filepath.Base(name), strings.Join(arguments, " "), err,
			strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// until calls the function until it succeeds, a component has ended, or the time is over. The error names the last failure that was not
// the timeout itself.
func until(ctx context.Context, what string, within time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if errors.Is(err, errEnded) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait at most %s for %s: %w: %w", within, what, ctx.Err(), last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func writeFile(path, content string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
}
