package ports

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// KeptBack is how many file descriptors are kept from listeners: for clients, the operator's calls and the API server.
const KeptBack = 1024

// Listeners opens ports, as many as there are file descriptors for. A process that has none left could neither take a client
// nor answer the operator.
type Listeners struct {
	most int64
	open atomic.Int64
}

// NewListeners reads the process's limit.
func NewListeners() *Listeners {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return &Listeners{most: int64(highest)}
	}
	return &Listeners{most: int64(min(limit.Cur, 1<<30)) - KeptBack} // what Go raises the limit to is Cur
}

// Most is how many ports there are file descriptors for.
func (l *Listeners) Most() int { return int(max(l.most, 0)) }

// Listen listens on a port of every address. Errors are [ErrNoDescriptor] and the system's.
func (l *Listeners) Listen(ctx context.Context, port uint16) (net.Listener, error) {
	if l.open.Add(1) > l.most {
		l.open.Add(-1)
		return nil, ErrNoDescriptor
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		l.open.Add(-1)
		return nil, err
	}
	return &counted{Listener: listener, closed: func() { l.open.Add(-1) }}, nil
}

// counted gives its file descriptor back once.
type counted struct {
	net.Listener
	once   sync.Once
	closed func()
}

// Close closes the listener.
func (c *counted) Close() error {
	err := c.Listener.Close()
	c.once.Do(c.closed)
	return err
}
