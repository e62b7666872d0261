package gateway

import (
	"context"
	"net/netip"
	"sync"
)

// cancelMost is how many instances one cancel request is sent to: each is a connection, and a cluster has a few.
const cancelMost = 16

// cancel passes a CancelRequest to every instance that runs: the key in it is known to one of them only. It returns when they
// have taken it, since the client takes the end of its connection for that. It never wakes a cluster, which has nothing to
// cancel.
func (c *clientConn) cancel(ctx context.Context, packet []byte) {
	running := c.backend.Running(c.listener.service)
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

// cancelAt passes the packet to one instance, which hangs up when it has taken it.
func (c *clientConn) cancelAt(ctx context.Context, target netip.AddrPort, packet []byte) {
	server, err := c.dial(ctx, target)
	if err != nil {
		c.logger.Debug("a cancel request cannot be passed on", "instance", target.String(), "error", err.Error())
		return
	}
	defer func() { _ = server.Close() }()
	defer context.AfterFunc(ctx, func() { _ = server.SetDeadline(longAgo) })()
	if _, err := server.Write(packet); err != nil {
		return // the instance has gone, and with it what was to be cancelled
	}
	_, _ = server.Read(make([]byte, 1))
}
