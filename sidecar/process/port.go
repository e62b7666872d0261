package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// tcpPort is the port that the kubelet connects to.
type tcpPort struct {
	address  string
	listener net.Listener // nil while the port is closed
	accepts  sync.WaitGroup
}

// open opens the port, unless it is open.
func (p *tcpPort) open(ctx context.Context) error {
	if p.listener != nil {
		return nil
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", p.address)
	if err != nil {
		return fmt.Errorf("open the readiness port: %w", err)
	}
	p.listener = listener
	p.accepts.Go(func() { acceptAndClose(listener) })
	return nil
}

// close closes the port, unless it is closed. When it returns, connections are refused.
func (p *tcpPort) close() {
	if p.listener == nil {
		return
	}
	_ = p.listener.Close() // the socket is closed whatever it returns
	p.accepts.Wait()
	p.listener = nil
}

// acceptAndClose closes every connection at once, until the listener is closed. It does not reset them: the kubelet's
// probe would fail if it received the reset before it has noticed that it is connected.
func acceptAndClose(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			_ = conn.Close()
		case errors.Is(err, net.ErrClosed):
			return
		default: // such as too many open files; meanwhile the kernel completes connections
			time.Sleep(retryInterval)
		}
	}
}
