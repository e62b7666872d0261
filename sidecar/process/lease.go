package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"
)

// ServeReadiness keeps the TCP port open, except while a client of the Unix socket leases it closed, until the context
// ends. At first the port is closed as if it were leased, until the worker restores it. What fails is logged and tried
// again.
func ServeReadiness(ctx context.Context, address, socket string, logger *slog.Logger) {
	port := &tcpPort{address: address}
	defer port.close()
	l := newLease(port, logger)
	for ctx.Err() == nil {
		l.settle(ctx)
		listener, err := ListenPrivate(socket)
		if err == nil {
			err = l.serve(ctx, listener)
		}
		if ctx.Err() != nil {
			return
		}
		logger.Error("cannot lease the readiness port", "error", err.Error())
		Pause(ctx, retryInterval)
	}
}

// port is what is leased.
type port interface {
	open(ctx context.Context) error
	close()
}

// listener is where the clients connect.
type listener interface {
	net.Listener
	SetDeadline(time.Time) error
}

// lease is the supervisor's side. It has one goroutine, which serves one client at a time: the worker has one
// connection, and the kernel closes it when the worker dies.
type lease struct {
	port   port
	logger *slog.Logger
	// until is when the lease ends; zero without one.
	until time.Time
	// openError is why the port could not be opened when it was last tried; nil otherwise.
	openError error
}

// newLease returns a lease that is taken for the worker that is about to start.
func newLease(port port, logger *slog.Logger) *lease {
	return &lease{port: port, logger: logger, until: time.Now().Add(leaseDuration)}
}

// serve serves the clients one after another until the context ends or the listener fails, and closes the listener.
func (l *lease) serve(ctx context.Context, clients listener) error {
	stop := context.AfterFunc(ctx, func() { _ = clients.Close() })
	defer stop()
	defer func() { _ = clients.Close() }() // closing twice is harmless
	for {
		l.settle(ctx)
		_ = clients.SetDeadline(l.next())
		conn, err := clients.Accept()
		switch {
		case err == nil:
			l.serveClient(ctx, conn)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("accept on the readiness socket: %w", err)
		}
	}
}

// settle opens the port unless it is leased.
func (l *lease) settle(ctx context.Context) {
	if time.Now().Before(l.until) {
		return
	}
	if !l.until.IsZero() {
		l.logger.Warn("the worker no longer keeps the readiness port closed: it opens")
		l.until = time.Time{}
	}
	l.open(ctx)
}

// open opens the port. A failure is logged once: it is tried again every second.
func (l *lease) open(ctx context.Context) {
	err := l.port.open(ctx)
	if err != nil && l.openError == nil {
		l.logger.Error("the pod is not ready", "error", err.Error())
	}
	l.openError = err
}

// next returns when there is something to do without a client; zero for never.
func (l *lease) next() time.Time {
	if l.openError != nil {
		return time.Now().Add(retryInterval)
	}
	return l.until
}

// serveClient serves one client until it leaves, is silent for the lease's duration, or asks for something unknown.
func (l *lease) serveClient(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }() // closing twice is harmless
	silence := l.until
	if silence.IsZero() {
		silence = time.Now().Add(leaseDuration)
	}
	for {
		_ = conn.SetDeadline(silence)
		var request [1]byte
		if _, err := conn.Read(request[:]); err != nil {
			return
		}
		silence = time.Now().Add(leaseDuration)
		var answer string
		switch request[0] {
		case withdraw:
			l.until, l.openError = silence, nil
			l.port.close()
			answer = withdrawn
		case restore:
			l.until = time.Time{}
			if l.open(ctx); l.openError != nil {
				return
			}
			answer = restored
		default:
			return
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}
