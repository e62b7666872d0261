package grpcserver

import (
	"errors"
	"net"
	"sync"
)

// port is a listener for several servers, each of which closes what it listens on when it stops.
type port struct {
	listener net.Listener
	arrivals chan arrival
	closed   chan struct{}
}

// arrival is what Accept returned.
type arrival struct {
	conn net.Conn
	err  error
}

// share accepts the listener's connections for the servers that it is lent to, until the port is closed.
func share(listener net.Listener) *port {
	p := &port{listener: listener, arrivals: make(chan arrival), closed: make(chan struct{})}
	go p.accept()
	return p
}

func (p *port) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case p.arrivals <- arrival{conn, err}:
		case <-p.closed:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
	}
}

func (p *port) close() {
	close(p.closed)
	_ = p.listener.Close()
}

// lend returns the listener for one server.
func (p *port) lend() net.Listener { return &lent{port: p, returned: make(chan struct{})} }

// lent is a port until the server closes it.
type lent struct {
	*port
	once     sync.Once
	returned chan struct{}
}

func (l *lent) Accept() (net.Conn, error) {
	select {
	case <-l.returned: // not by chance, if somebody comes at the same time
		return nil, net.ErrClosed
	default:
	}
	select {
	case next := <-l.arrivals:
		return next.conn, next.err
	case <-l.returned:
		return nil, net.ErrClosed
	}
}

func (l *lent) Close() error {
	l.once.Do(func() { close(l.returned) })
	return nil
}

func (l *lent) Addr() net.Addr { return l.listener.Addr() }
