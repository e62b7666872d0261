package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// longAgo is a deadline that ends every read and write that waits.
var longAgo = time.Unix(1, 0)

// clientConn is one connection from its beginning to its end.
type clientConn struct {
	*Gateway
	listener *serviceListener
	client   *net.TCPConn
	peer     netip.AddrPort
	came     time.Time
	logger   *slog.Logger
	// inSession is whether it has a place among the sessions.
	inSession bool
}

// claim is for whom the connection takes places.
func (v *clientConn) claim() claim {
	return claim{cluster: v.listener.service.cluster(), source: SourceOf(v.peer.Addr())}
}

// serve takes the connection through its steps. It has its place among those that open until ctx ends.
func (v *clientConn) serve(ctx context.Context, p *slot) {
	defer func() { _ = v.client.Close() }()
	packet, ok := v.open(ctx, p)
	if !ok {
		return
	}
	service := v.listener.service
	defer v.endSession()
	server, err := v.hold(packet) //nolint:contextcheck // ctx is of the opening's place only
	if err != nil {
		v.refuse(packet.Kind, err)
		return
	}
	packet = startup.Packet{} // a session may last for days
	v.logger.Debug("a session passes through", "instance", server.RemoteAddr().String())
	v.observer.Spliced(service, 1)
	defer v.observer.Spliced(service, -1)
	splice(v.cut, halfCloseTimeout, v.client, server, v.contain) //nolint:contextcheck // what contain logs outlives no session
	v.logger.Debug("a session ended")
}

// open reads what the connection says first, and reports whether that is a client who wants a session.
func (v *clientConn) open(ctx context.Context, p *slot) (startup.Packet, bool) {
	defer v.starting.give(p)
	packet, err := v.read(ctx)
	var no *startup.Error
	switch {
	case errors.As(err, &no) && errors.Is(context.Cause(ctx), errStartup):
		v.refuse(packet.Kind, errStartup)
		return startup.Packet{}, false
	case errors.As(err, &no) && v.cut.Err() != nil:
		v.ignore(ignoredClosed)
		return startup.Packet{}, false
	case errors.As(err, &no):
		v.ignore(string(no.Reason))
		return startup.Packet{}, false
	case err != nil:
		v.refuse(packet.Kind, err)
		return startup.Packet{}, false
	case packet.Kind == startup.Cancel:
		v.cancel(ctx, packet.Bytes)
		return startup.Packet{}, false
	}
	v.observer.Took(v.listener.service, PhaseStartup, time.Since(v.came))
	return packet, true
}

// read reads the opening within its time.
func (v *clientConn) read(ctx context.Context) (startup.Packet, error) {
	if err := v.client.SetDeadline(v.came.Add(v.limits.StartupFor)); err != nil {
		return startup.Packet{}, errHungUp
	}
	stop := context.AfterFunc(ctx, func() { _ = v.client.SetDeadline(longAgo) })
	packet, err := startup.Read(v.client, v.limits.StartupBytes)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return packet, err
	}
	if err := v.client.SetDeadline(time.Time{}); err != nil {
		return packet, errHungUp
	}
	return packet, nil
}

// beginSession takes the session's place, once, when its cluster is awake. A client for which there is none has woken its
// cluster nevertheless, and connects to it directly the next time.
func (v *clientConn) beginSession() error {
	if !v.inSession {
		v.inSession = v.spliced.take(v.listener.service.cluster())
	}
	if !v.inSession {
		return errSpliced
	}
	return nil
}

func (v *clientConn) endSession() {
	if v.inSession {
		v.spliced.give(v.listener.service.cluster())
	}
}

// ignore counts a connection that is no client.
func (v *clientConn) ignore(reason string) {
	v.observer.Ignored(v.listener.service, reason)
	v.logger.Debug("a connection is ignored", "reason", reason)
}
