package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// keptBack is how many file descriptors are kept from listeners: for clients, the operator's calls and the API server.
const keptBack = 1024

// ErrNoDescriptor says that the process has no file descriptor left for another port. Without any it could neither take
// a client nor answer the operator.
var ErrNoDescriptor = errors.New("no_descriptor: every file descriptor that ports may take is taken; the limit is RLIMIT_NOFILE")

// Opener opens ports. Its methods may be called concurrently.
type Opener struct {
	most int64
	open atomic.Int64
}

// Descriptors returns how many file descriptors the process may open, without those that are kept back.
func Descriptors() (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	return int(min(limit.Cur, 1<<30)) - keptBack, nil
}

// NewOpener returns an opener for a process with its limit of file descriptors.
func NewOpener() (*Opener, error) {
	most, err := Descriptors()
	return &Opener{most: int64(max(most, 0))}, err
}

// Most returns how many ports there are file descriptors for.
func (o *Opener) Most() int { return int(o.most) }

// Listen listens on a port of every address; 0: any. Errors are [ErrNoDescriptor] and the system's.
func (o *Opener) Listen(ctx context.Context, port uint16) (net.Listener, error) {
	if o.open.Add(1) > o.most {
		o.open.Add(-1)
		return nil, ErrNoDescriptor
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		o.open.Add(-1)
		return nil, err
	}
	return &counted{Listener: listener, closed: sync.OnceFunc(func() { o.open.Add(-1) })}, nil
}

// counted is a listener that counts until it is closed.
type counted struct {
	net.Listener
	closed func()
}

func (c *counted) Close() error {
	err := c.Listener.Close()
	c.closed()
	return err
}
