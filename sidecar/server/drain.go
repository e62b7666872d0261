package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// drainTimeout bounds a drain for both the client and the server. For a hibernation it lasts until PostgreSQL has begun
// to stop.
const drainTimeout = 6 * time.Second

// drained is the answer once every session is closed.
const drained = "drained\n"

// ServeDrain calls drain for every connection to the Unix socket and answers when it has returned, until the context
// ends. The socket is in a directory private to this container: over the network anybody could request a drain.
func ServeDrain(ctx context.Context, path string, drain func(context.Context)) error {
	listener, err := process.ListenPrivate(path)
	if err != nil {
		return fmt.Errorf("open the drain socket: %w", err)
	}
	return answerDrains(ctx, listener, drain)
}

// answerDrains serves the listener's clients one after the other, and closes the listener.
func answerDrains(ctx context.Context, listener net.Listener, drain func(context.Context)) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	defer func() { _ = listener.Close() }() // closing twice is harmless
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept on the drain socket: %w", err)
		}
		drain(ctx)
		_ = conn.SetDeadline(time.Now().Add(drainTimeout))
		_, _ = io.WriteString(conn, drained)
		_ = conn.Close()
	}
}

// Drain asks the worker to close its database sessions, and returns when they are closed. Without a worker there are
// none.
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
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	answer, err := io.ReadAll(io.LimitReader(conn, 64))
	if ctx.Err() != nil {
		return fmt.Errorf("wait for the worker to drain: %w", ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("wait for the worker to drain: %w", err)
	}
	if string(answer) != drained {
		return fmt.Errorf("wait for the worker to drain: it answered %q", answer)
	}
	return nil
}
