package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// halfCloseTimeout is how long a client may take to end its direction after the server has ended its own. A server does
// so only at its end, and a client in a pool may notice only when it is next used; the kernel's own tcp_fin_timeout is
// as long.
const halfCloseTimeout = time.Minute

// buffered is the size of the kernel's buffer for one direction of a connection; the kernel uses as much again for
// itself. Without this limit, both buffers of a session whose client does not read grow to several MiB, which are
// charged to the pod.
const buffered = 64 << 10

// session forwards bytes between two connections.
type session struct {
	// broken is set when a side broke off, closing when one direction ended in order and that was forwarded.
	broken, closing atomic.Bool
}

// splice forwards bytes both ways until both sides have ended, or until cut ends, and closes both. Go uses splice(2):
// the bytes stay in the kernel, in a pipe for each direction. An unprivileged user gets 1 MiB for each of the first 64
// pipes and 8 KiB for further ones (pipe-user-pages-soft), which limits that memory and still moves 1.8 GB/s.
//
// The end of one direction is forwarded by itself, as clients of COPY and replication may need it, and so is a reset. A
// client that does not end its direction after the server has ended its own is cut after halfCloseWait. contain is
// deferred in the goroutine that splice starts.
func splice(cut context.Context, halfCloseWait time.Duration, client, server *net.TCPConn, contain func()) {
	stop := context.AfterFunc(cut, func() { _ = client.Close(); _ = server.Close() })
	defer stop()
	for _, conn := range []*net.TCPConn{client, server} {
		_ = conn.SetReadBuffer(buffered)
		_ = conn.SetWriteBuffer(buffered)
	}
	var s session
	back := make(chan struct{})
	go func() {
		defer close(back)
		defer contain()
		s.pass(client, server)
		_ = client.SetReadDeadline(time.Now().Add(halfCloseWait))
	}()
	s.pass(server, client)
	<-back
	if s.broken.Load() {
		reset(client, server)
	}
	_ = client.Close()
	_ = server.Close()
}

func (s *session) pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
	case err == nil && (s.closing.Load() || !gone(from)):
		s.closing.Store(true)
		_ = to.CloseWrite() // the other side may be gone
	case err != nil && gone(to):
		s.broken.Store(true) // the other direction forwards what "to" sent before it broke, and then ends by itself
	default:
		// "from" broke. The other direction would keep waiting for "to", which does not know that. If the other direction got
		// the error, this one only sees an end.
		s.broken.Store(true)
		reset(to, from)
	}
}

func reset(both ...*net.TCPConn) {
	for _, conn := range both {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
}

// stateClosed is TCP_CLOSE of the kernel's net/tcp_states.h: nothing can be sent or received any more.
const stateClosed = 7

func gone(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err != nil || info.State == stateClosed
	}) // on a connection that was closed here, closed stays true
	return closed
}
