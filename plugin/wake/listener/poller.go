// Package listener listens on many ports at little cost: the gateway of a fleet has twenty thousand, and a goroutine that
// waits at each of them takes a stack of 4 KiB. Here one waits for all of them, by epoll(7).
package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// KeptBack is how many file descriptors are kept from listeners: for clients, the operator's calls and the API server.
const KeptBack = 1024

// ErrNoDescriptor says that the process has no file descriptor left for another port. Without any it could neither take a
// client nor answer the operator.
var ErrNoDescriptor = errors.New("no_descriptor: every file descriptor that ports may take is taken; the limit is RLIMIT_NOFILE")

// Poller opens ports, as many as there are file descriptors for.
type Poller struct {
	most  int
	epoll *os.File // by which the runtime waits for us

	mutex sync.Mutex
	open  map[int32]*Listener // by the number that their events carry
	last  int32
}

// Descriptors returns how many file descriptors the process may open, without those that are kept back.
func Descriptors() (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	return int(min(limit.Cur, 1<<30)) - KeptBack, nil
}

// New makes a poller for a process with its limit of file descriptors.
func New() (*Poller, error) {
	most, err := Descriptors()
	if err != nil {
		return nil, err
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err == nil {
		err = syscall.SetNonblock(epoll, true) // so that the runtime waits for it as for a socket
	}
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance: %w", err)
	}
	e := &Poller{most: most, epoll: os.NewFile(uintptr(epoll), "epoll"), open: map[int32]*Listener{}}
	raw, err := e.epoll.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("wait for an epoll instance: %w", err)
	}
	go e.watch(raw)
	return e, nil
}

// Most is how many ports there are file descriptors for.
func (e *Poller) Most() int { return max(e.most, 0) }

// Close ends the waiting. The listeners stay the callers' to close.
func (e *Poller) Close() error { return e.epoll.Close() }

// atOnce is how many events are taken at once.
const atOnce = 128

// watch has the functions called whose listeners somebody comes to, until the poller is closed.
func (e *Poller) watch(raw syscall.RawConn) {
	events := make([]syscall.EpollEvent, atOnce)
	for {
		count := 0
		err := raw.Read(func(fd uintptr) bool {
			n, err := syscall.EpollWait(int(fd), events, 0)
			count = max(n, 0)
			return count > 0 || err != nil && !errors.Is(err, syscall.EINTR)
		})
		if err != nil {
			return
		}
		for _, event := range events[:count] {
			e.mutex.Lock()
			l := e.open[event.Fd]
			e.mutex.Unlock()
			if l != nil {
				go l.tell()
			}
		}
	}
}

// Listen listens on a port of every address; 0: any. Errors are [ErrNoDescriptor] and the system's.
func (e *Poller) Listen(ctx context.Context, port uint16) (*Listener, error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if len(e.open) >= e.most {
		return nil, ErrNoDescriptor
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen: %T is no TCP listener", listener), listener.Close())
	}
	e.last++
	l := &Listener{TCPListener: tcp, poller: e, number: e.last}
	e.open[l.number] = l
	return l, nil
}

// Listener is a port.
type Listener struct {
	*net.TCPListener
	poller *Poller
	number int32
	come   func()
}

// Announce has the function called, in a goroutine of its own, when a connection waits to be accepted, and again only after
// it has returned, until the listener is closed. It is called once.
func (l *Listener) Announce(come func()) error {
	l.come = come
	if err := l.await(syscall.EPOLL_CTL_ADD); err != nil {
		return fmt.Errorf("wait for connections to %s: %w", l.Addr(), err)
	}
	return nil
}

func (l *Listener) tell() {
	l.come()
	_ = l.await(syscall.EPOLL_CTL_MOD) // fails if it is closed
}

// await asks for one event, which comes at once if a connection waits already.
func (l *Listener) await(operation int) error {
	listening, err := l.SyscallConn()
	if err != nil {
		return err
	}
	waiting, err := l.poller.epoll.SyscallConn()
	if err != nil {
		return err
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLONESHOT, Fd: l.number}
	var closed, failed error
	err = listening.Control(func(fd uintptr) {
		closed = waiting.Control(func(epoll uintptr) { failed = syscall.EpollCtl(int(epoll), operation, int(fd), &event) })
	})
	return errors.Join(err, closed, failed)
}

// Close closes the port; the kernel forgets its events.
func (l *Listener) Close() error {
	l.poller.mutex.Lock()
	delete(l.poller.open, l.number)
	l.poller.mutex.Unlock()
	return l.TCPListener.Close()
}
