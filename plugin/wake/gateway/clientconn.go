package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// longAgo is a deadline that ends every blocked read and write.
var longAgo = time.Unix(1, 0)

// clientConn is one client's connection, from accept to close.
type clientConn struct {
	*Gateway
	service Service
	client  *net.TCPConn
	peer    netip.AddrPort
	came    time.Time
	logger  *slog.Logger
	// wakesNothing is why the client gets a session only while the cluster is awake: the cluster ignores it, or it is an
	// instance of it; "" for all others.
	wakesNothing Refusal
	// inSession is whether it holds a session slot.
	inSession bool
}

func (c *clientConn) claim() claim {
	return claim{cluster: c.service.cluster(), source: SourceOf(c.peer.Addr())}
}

// serve takes the connection through its steps. ctx ends if another connection takes over its starting slot p.
func (c *clientConn) serve(ctx context.Context, p *slot) {
	defer func() { _ = c.client.Close() }()
	packet, ok := c.open(ctx, p)
	if !ok {
		return
	}
	defer c.leaveSession()
	server, err := c.hold(packet) //nolint:contextcheck // ctx is of the startup packet's slot only
	if err != nil {
		c.refuse(packet.Kind, err)
		return
	}
	packet = startup.Packet{} // a session may last for days
	c.logger.Debug("a session passes through", "instance", server.RemoteAddr().String())
	c.observer.Spliced(c.service, 1)
	defer c.observer.Spliced(c.service, -1)
	splice(c.cut, halfCloseTimeout, c.client, server, c.contain) //nolint:contextcheck // what contain logs outlives no session
	c.logger.Debug("a session ended")
}

// open reads the startup packet, and reports whether the connection is a client that wants a session.
func (c *clientConn) open(ctx context.Context, p *slot) (packet startup.Packet, ok bool) {
	defer c.starting.give(p)
	if c.wakesNothing != "" && len(c.backend.Running(ctx, c.service)) == 0 {
		c.ignore(string(c.wakesNothing))
		return packet, false
	}
	packet, err := c.read(ctx)
	var no *startup.Error
	switch {
	case errors.As(err, &no) && errors.Is(context.Cause(ctx), errStartup):
		c.refuse(packet.Kind, errStartup)
	case errors.As(err, &no) && c.cut.Err() != nil:
		c.ignore(ignoredClosed)
	case errors.As(err, &no):
		c.ignore(string(no.Reason))
	case err != nil:
		c.refuse(packet.Kind, err)
	case packet.Kind == startup.Cancel:
		c.cancel(ctx, packet.Bytes)
	default:
		c.observer.Took(c.service, PhaseStartup, time.Since(c.came))
		return packet, true
	}
	return packet, false
}

func (c *clientConn) read(ctx context.Context) (startup.Packet, error) {
	if err := c.client.SetDeadline(c.came.Add(c.limits.StartupFor)); err != nil {
		return startup.Packet{}, errHungUp
	}
	stop := context.AfterFunc(ctx, func() { _ = c.client.SetDeadline(longAgo) })
	packet, err := startup.Read(c.client, c.limits.StartupBytes)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil && c.client.SetDeadline(time.Time{}) != nil {
		err = errHungUp
	}
	return packet, err
}

// ignore counts a connection that is not a client's.
func (c *clientConn) ignore(reason string) {
	c.observer.Ignored(c.service, reason)
	c.logger.Debug("a connection is ignored", "reason", reason)
}

// contain is deferred in every goroutine of the connection. It logs and counts a panic, and limits it to the
// connection: every cluster's reconciliation depends on this process.
func (c *clientConn) contain() {
	caught := recover()
	if caught == nil {
		return
	}
	c.logger.Error("a connection panicked", "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
	c.observer.Refused(c.service, RefusedPanicked)
	_ = c.client.Close()
}
