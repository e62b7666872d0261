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

// drainTimeout bounds a drain for both the client and the server.
const drainTimeout = 3 * time.Second

// drained is the answer once every session is closed.
const drained = "drained\n"

// ServeDrain calls drain for every connection to the Unix socket and answers when it has returned, until the context ends. The
// socket is in a directory private to this container: over the network anybody could request a drain.
func ServeDrain(ctx context.Context, path string, drain func()) error {
	listener, err := listenPrivately(path)
	if err != nil {
		return err
	}
	return answerDrains(ctx, listener, drain)
}

// answerDrains serves the listener's clients one after the other, and closes the listener.
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

// listenPrivately opens a Unix socket that only our own user may connect to, replacing that of an earlier worker. The socket
// gets its mode before its final name, so that it is never open to others.
func listenPrivately(path string) (net.Listener, error) {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier worker: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", fresh, err)
	}
	listener.SetUnlinkOnClose(false) // it would remove the old name
	if err := os.Chmod(fresh, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict %s: %w", fresh, err), listener.Close())
	}
	if err := os.Rename(fresh, path); err != nil {
		return nil, errors.Join(fmt.Errorf("name the drain socket: %w", err), listener.Close())
	}
	return listener, nil
}

// Drain asks the worker to close its database sessions, and returns when they are closed. Without a worker there are none.
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
