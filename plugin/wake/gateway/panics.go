package gateway

import (
	"fmt"
	"runtime/debug"
)

// contain is deferred in every goroutine of the connection: a panic is logged and counted and ends the connection, and not the
// process, on which every cluster's reconciliation depends.
func (c *clientConn) contain() {
	caught := recover()
	if caught == nil {
		return
	}
	c.logger.Error("a connection panicked", "panic", fmt.Sprint(caught), "stack", string(debug.Stack()))
	c.observer.Refused(c.listener.service, RefusedPanicked)
	_ = c.client.Close()
}
