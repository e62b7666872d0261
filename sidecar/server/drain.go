package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// drainTimeout bounds both ends of a drain.
const drainTimeout = 3 * time.Second

// drained is the answer once every session is closed.
const drained = "drained\n"

// ServeDrain calls drain for every connection to the Unix socket, and answers when it has returned, until the context ends.
// The socket is in a directory of this container alone: over the network anybody could ask.
func ServeDrain(ctx context.Context, path string, drain func()) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier worker: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return fmt.Errorf("restrict %s: %w", path, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept on %s: %w", path, err)
		}
		drain()
		_ = conn.SetDeadline(time.Now().Add(drainTimeout))
		_, _ = io.WriteString(conn, drained)
		_ = conn.Close()
	}
}

// Drain asks the worker to close its database sessions and returns when it has. Without a worker there are none.
func Drain(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask the worker to drain: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(drainTimeout))
	answer, err := io.ReadAll(io.LimitReader(conn, 64))
	if err != nil {
		return fmt.Errorf("wait for the worker to drain: %w", err)
	}
	if string(answer) != drained {
		return fmt.Errorf("wait for the worker to drain: it answered %q", answer)
	}
	return nil
}
