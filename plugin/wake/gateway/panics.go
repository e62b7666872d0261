package gateway

import (
	"fmt"
	"runtime/debug"
)

// contain is deferred in every goroutine of the connection. It logs and counts a panic, and limits it to the connection: every
// cluster's reconciliation depends on this process.
func (c *clientConn) contain() {
	caught := recover()
	if caught == nil {
		return
	}
	c.logger.Error("a connection panicked", "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
	c.observer.Refused(c.listener.service, RefusedPanicked)
	_ = c.client.Close()
}
