package grpcserver

import (
	"errors"
	"net"
	"sync"
)

// sharedListener accepts connections for several servers. A gRPC server closes its listener when it stops, so each gets its own.
type sharedListener struct {
	listener net.Listener
	results  chan acceptResult
	closed   chan struct{}
}

// acceptResult is what Accept returned.
type acceptResult struct {
	conn net.Conn
	err  error
}

// newSharedListener accepts the listener's connections until close.
func newSharedListener(listener net.Listener) *sharedListener {
	p := &sharedListener{listener: listener, results: make(chan acceptResult), closed: make(chan struct{})}
	go p.accept()
	return p
}

func (p *sharedListener) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case p.results <- acceptResult{conn, err}:
		case <-p.closed:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
	}
}

func (p *sharedListener) close() {
	close(p.closed)
	_ = p.listener.Close()
}

// newListener returns a listener for one server.
func (p *sharedListener) newListener() net.Listener {
	return &serverListener{sharedListener: p, returned: make(chan struct{})}
}

// serverListener is one server's listener.
type serverListener struct {
	*sharedListener
	once     sync.Once
	returned chan struct{}
}

func (l *serverListener) Accept() (net.Conn, error) {
	select {
	case <-l.returned: // otherwise select might choose a connection that arrives at the same time
		return nil, net.ErrClosed
	default:
	}
	select {
	case next := <-l.results:
		return next.conn, next.err
	case <-l.returned:
		return nil, net.ErrClosed
	}
}

func (l *serverListener) Close() error {
	l.once.Do(func() { close(l.returned) })
	return nil
}

func (l *serverListener) Addr() net.Addr { return l.listener.Addr() }
