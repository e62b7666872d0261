package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

const (
	// attempts is how often an instance that was reported to accept sessions is tried. It may have stopped in between.
	attempts = 5
	// attemptPause is the pause after the first attempt, and grows with each: 1.5 s in all.
	attemptPause = 150 * time.Millisecond
	// holdsPause is the pause before Resolve is called again for a client that is held after all.
	holdsPause = time.Second
	// sendAddressFor limits how long a session waits for SendClientAddress.
	sendAddressFor = time.Second
	// answerMost is the size in bytes up to which an ErrorResponse is parsed; PostgreSQL's have a few hundred.
	answerMost = 8 << 10
)

// route asks the backend where the session goes, and sends the startup packet there.
func (c *clientConn) route(ctx context.Context, packet startup.Packet) (*reached, error) {
	if c.wakesNothing != "" || packet.Replication != startup.NoReplication {
		return c.routeToRunning(ctx, packet)
	}
	client := Client{Peer: c.peer, User: packet.User, Database: packet.Database}
	for asked, attempt := time.Now(), 1; ; attempt++ {
		target, err := c.backend.Resolve(ctx, c.service, client)
		if err != nil {
			return nil, causeOr(ctx, err)
		}
		answered := time.Now()
		reached, err := c.reach(ctx, target, packet)
		if err == nil {
			c.observer.Took(c.service, PhaseResolve, answered.Sub(asked))
			c.observer.Took(c.service, PhaseConnect, time.Since(answered))
			return reached, nil
		}
		switch {
		case errors.Is(err, errHolds):
			c.leaveSession()
			attempt = 0
		case attempt == attempts || !errors.Is(err, errUnreachable):
			return nil, err
		}
		c.logger.Debug("the instance does not accept the session", "instance", target.String(), "attempt", attempt, "error", err.Error())
		pause(ctx, cmp.Or(time.Duration(attempt)*attemptPause, holdsPause))
	}
}

// routeToRunning forwards a session to a running instance and never wakes the cluster: replication clients are
// connected all the time, and neither ignored clients nor the cluster's own instances may wake it.
func (c *clientConn) routeToRunning(ctx context.Context, packet startup.Packet) (*reached, error) {
	reconnect := c.backend.MustReconnect(c.service, c.peer) // before the instances, because it may take a while
	running := c.backend.Running(ctx, c.service)
	switch {
	case len(running) == 0 && c.wakesNothing != "":
		return nil, errUnreachable
	case len(running) == 0:
		return nil, errReplication
	case reconnect:
		return nil, ErrReconnect
	}
	return c.reach(ctx, running[rand.IntN(len(running))], packet)
}

// leaveSession gives up the slot of the session, if there is one.
func (c *clientConn) leaveSession() {
	if c.inSession {
		c.spliced.give(c.service.cluster())
		c.inSession = false
	}
}

// reach connects to an instance and sends it the startup packet. The error is errUnreachable if another attempt may
// help.
func (c *clientConn) reach(ctx context.Context, target netip.AddrPort, packet startup.Packet) (*reached, error) {
	if c.inSession = c.inSession || c.spliced.take(c.service.cluster()); !c.inSession {
		// The client has woken its cluster all the same, and reaches it directly when it reconnects.
		c.backend.CountAsActive(ctx, c.service, c.peer)
		return nil, errSpliced
	}
	server, err := c.dial(ctx, target)
	if err != nil {
		return nil, causeOr(ctx, fmt.Errorf("%w: %w", errUnreachable, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = server.SetDeadline(longAgo) })
	sending, done := context.WithTimeout(ctx, sendAddressFor)
	c.backend.SendClientAddress(sending, target, addrPort(server.LocalAddr()), c.peer)
	done()
	var answer []byte
	if !c.backend.MayBegin(ctx, c.service) {
		err = errHolds
	} else {
		answer, err = replay(server, packet)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	return &reached{server: server, answer: answer}, nil
}

func (c *clientConn) dial(ctx context.Context, target netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: c.limits.DialFor, KeepAliveConfig: keepAlive}
	return dialer.DialTCP(ctx, "tcp", netip.AddrPort{}, target)
}

// replay sends the instance what the client has sent, and returns the part of its answer that belongs to the client.
func replay(server *net.TCPConn, packet startup.Packet) ([]byte, error) {
	if packet.Kind == startup.TLS {
		if err := askTLS(server); err != nil {
			return nil, err
		}
	}
	if _, err := server.Write(packet.Bytes); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if packet.Kind != startup.Plain {
		return nil, nil // the answer is encrypted for the client
	}
	return firstAnswer(server)
}

// askTLS asks the instance for TLS, as the client has asked and been promised. The server must send nothing between its
// one-byte answer and the ClientHello; checking that is the client's job.
func askTLS(server *net.TCPConn) error {
	if _, err := server.Write(startup.SSLRequest); err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(server, answer[:]); err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if answer[0] != 'S' {
		return fmt.Errorf("%w: it answered %q", errNoTLS, answer[0])
	}
	return nil
}

// firstAnswer reads the instance's first answer to a startup packet. While it starts or stops, it answers 57P03. The
// client has received nothing of that yet, so another attempt is possible.
func firstAnswer(server io.Reader) ([]byte, error) {
	const header = 5 // type and length; the length includes itself
	answer, need := make([]byte, 0, 512), 1
	for len(answer) < need {
		if len(answer) == cap(answer) {
			answer = append(make([]byte, 0, answerMost), answer...)
		}
		n, err := server.Read(answer[len(answer):cap(answer)])
		answer = answer[:len(answer)+n]
		if n == 0 && err != nil {
			return nil, fmt.Errorf("%w: %w", errUnreachable, err)
		}
		if answer[0] != 'E' {
			return answer, nil
		}
		need = header
		if len(answer) >= header {
			need = int(binary.BigEndian.Uint32(answer[1:])) + 1
		}
		if need > answerMost {
			return answer, nil // a server that cannot fork sends a message without a length
		}
	}
	var refused pgproto3.ErrorResponse
	if need >= header && refused.Decode(bytes.Clone(answer[header:need])) == nil && refused.Code == string(startup.CannotConnectNow) {
		return nil, fmt.Errorf("%w: %s", errUnreachable, refused.Message)
	}
	return answer, nil
}

func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func pause(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}

// cancelMost limits how many instances one cancel request is sent to: each needs a connection, and a cluster has only a
// few.
const cancelMost = 16

// cancel forwards a CancelRequest to every running instance, because only one of them knows its key. It returns once
// they have processed it, because libpq takes the end of its connection as the confirmation. It never wakes a cluster,
// which has nothing to cancel.
func (c *clientConn) cancel(ctx context.Context, packet []byte) {
	running := c.backend.Running(ctx, c.service)
	if len(running) == 0 {
		c.ignore(ignoredCancel)
		return
	}
	ctx, stop := context.WithTimeout(ctx, c.limits.DialFor)
	defer stop()
	var sent sync.WaitGroup
	for _, target := range running[:min(len(running), cancelMost)] {
		sent.Go(func() {
			defer c.contain()
			c.cancelAt(ctx, target, packet)
		})
	}
	sent.Wait()
}

// cancelAt forwards the packet to one instance, which closes the connection after processing it.
func (c *clientConn) cancelAt(ctx context.Context, target netip.AddrPort, packet []byte) {
	server, err := c.dial(ctx, target)
	if err != nil {
		c.logger.Debug("cannot pass on a cancel request", "instance", target.String(), "error", err.Error())
		return
	}
	defer func() { _ = server.Close() }()
	defer context.AfterFunc(ctx, func() { _ = server.SetDeadline(longAgo) })()
	if _, err := server.Write(packet); err != nil {
		return // the instance is gone, and so is the query to cancel
	}
	_, _ = server.Read(make([]byte, 1))
}
