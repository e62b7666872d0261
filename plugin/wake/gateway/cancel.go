package gateway

import (
	"context"
	"net/netip"
	"sync"
)

// cancelMost limits how many instances one cancel request is sent to: each needs a connection, and a cluster has only a few.
const cancelMost = 16

// cancel forwards a CancelRequest to every running instance, since only one of them knows its key. It returns once they have
// processed it, because libpq takes the end of its connection as the confirmation. It never wakes a cluster, which has nothing to
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
