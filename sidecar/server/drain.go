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
	listener, err := listenPrivately(path)
	if err != nil {
		return err
	}
	return answerDrains(ctx, listener, drain)
}

// answerDrains serves one client after the other on a listener, which it closes.
func answerDrains(ctx context.Context, listener net.Listener, drain func()) error {
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
		drain()
		_ = conn.SetDeadline(time.Now().Add(drainTimeout))
		_, _ = io.WriteString(conn, drained)
		_ = conn.Close()
	}
}

// listenPrivately opens a Unix socket that only the own user may connect to, in the place of what an earlier worker left. It
// gets its mode before it gets its name, so that it is open to others at no time.
func listenPrivately(path string) (net.Listener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier worker: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", fresh, err)
	}
	listener.SetUnlinkOnClose(false) // it would remove the name that it no longer has
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict %s: %w", fresh, err), listener.Close())
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(fmt.Errorf("name the drain socket: %w", err), listener.Close())
	}
	return listener, nil
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
