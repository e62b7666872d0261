package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// keepAlive detects within two minutes, on both sides of an idle session, that a peer has vanished. It also keeps such
// sessions in the connection tables of routers that expire entries after five minutes. While data is unacknowledged, the
// kernel sends no keepalives, and gives up after its retransmissions (net.ipv4.tcp_retries2: about 15 minutes).
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

// hold keeps the client until an instance has taken its startup packet, and returns the connection to that instance.
func (c *clientConn) hold(packet startup.Packet) (*net.TCPConn, error) {
	ctx, cancel := context.WithCancelCause(c.cut)
	defer cancel(nil)
	p := c.held.take(c.claim(), func() { cancel(errHeld) })
	if p == nil {
		return nil, errHeld
	}
	defer c.held.give(p)
	c.observer.Held(c.service, 1)
	defer c.observer.Held(c.service, -1)
	c.logger.Debug("a client is held", "kind", packet.Kind.String(), "user", packet.User, "database", packet.Database, "server_name", packet.ServerName)
	if err := c.client.SetKeepAliveConfig(keepAlive); err != nil {
		return nil, errHungUp
	}
	ctx, stop := context.WithTimeoutCause(ctx, c.limits.HeldFor, ErrTimeout)
	defer stop()

	patience := c.watch(cancel)
	reached, err := c.route(ctx, packet)
	if waited := time.Since(c.came); waited >= c.limits.LongWait {
		c.logger.Info("a client waited for long",
			"waited", waited.String(), "user", packet.User, "database", packet.Database, "served", err == nil)
	}
	ahead, left := patience.stop()
	switch {
	case err != nil:
		return nil, err
	case left == nil:
		left = reached.begin(c.client, ahead)
	}
	if left != nil {
		_ = reached.server.Close()
		return nil, left
	}
	return reached.server, nil
}

// watching reads from a held client. A client should send nothing before the server does, but only reading shows that
// it has hung up. What it sends anyway is kept for the server.
type watching struct {
	client *net.TCPConn
	ended  chan struct{}
	// ahead and left may be read once ended is closed.
	ahead []byte
	left  error
}

// watch starts reading. It calls leave with the reason if the client hangs up or sends more than the limit.
func (c *clientConn) watch(leave context.CancelCauseFunc) *watching {
	w := &watching{client: c.client, ended: make(chan struct{}), left: errHungUp}
	go func() {
		defer close(w.ended)
		defer c.contain()
		if w.left = w.read(c.limits.StartupBytes); w.left != nil {
			leave(w.left)
		}
	}()
	return w
}

// read reads until it is stopped, and then returns nil.
func (w *watching) read(limit int) error {
	var buffer [64]byte // a client that follows the protocol sends nothing
	for {
		n, err := w.client.Read(buffer[:])
		if len(w.ahead)+n > limit {
			return errAhead
		}
		w.ahead = append(w.ahead, buffer[:n]...)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return errHungUp
		}
	}
}

// stop ends the reading. It returns what the client sent early, or why it must no longer be served.
func (w *watching) stop() (ahead []byte, left error) {
	_ = w.client.SetReadDeadline(longAgo)
	<-w.ended
	if err := w.client.SetReadDeadline(time.Time{}); err != nil {
		return nil, errHungUp
	}
	return w.ahead, w.left
}

// reached is an instance that has received the startup packet.
type reached struct {
	server *net.TCPConn
	// answer is what it has sent so far.
	answer []byte
}

// begin forwards what each side has sent so far.
func (r *reached) begin(client *net.TCPConn, ahead []byte) error {
	if len(ahead) > 0 {
		if _, err := r.server.Write(ahead); err != nil {
			return fmt.Errorf("%w: %w", errUnreachable, err)
		}
	}
	if len(r.answer) > 0 {
		if _, err := client.Write(r.answer); err != nil {
			return errHungUp
		}
	}
	return nil
}
