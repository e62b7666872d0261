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

// lingerFor is how long a client may take to end its direction when the server has ended its own. A server does so only at its
// end, and a client in a pool may notice at its next use only; the kernel's own tcp_fin_timeout is as long.
const halfCloseTimeout = time.Minute

// buffered is how many bytes the kernel keeps for one direction of a connection; it counts as many again for itself. Left
// alone it lets both sides of a session whose client does not read grow to several MiB, which count for the pod.
const buffered = 64 << 10

// session passes bytes between two connections.
type session struct {
	// broken tells that one side did not end in order, closing that one direction did and was passed on.
	broken, closing atomic.Bool
}

// splice passes bytes both ways until both sides have ended, or until cut ends, and closes both. Go moves the bytes with
// splice(2): they stay in the kernel, in a pipe for each direction. A user without privileges gets 1 MiB for each of the first 64
// pipes and 8 KiB from then on (pipe-user-pages-soft), which bounds that memory and still moves 1.8 GB/s.
//
// An end of one direction is passed on alone, as clients of COPY and of replication may need, and so is a reset. A client that
// does not end its direction when the server has ended its own is let go after halfCloseWait.
// contain is deferred in the goroutine that it starts.
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

// pass passes one direction.
func (s *session) pass(to, from *net.TCPConn) {
	_, err := io.Copy(to, from)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
	case err == nil && (s.closing.Load() || !gone(from)):
		s.closing.Store(true)
		_ = to.CloseWrite() // the other side may have gone meanwhile
	case err != nil && gone(to):
		s.broken.Store(true) // the other direction passes on what to had said before it broke, and then ends by itself
	default:
		// It is from that broke: the other direction would wait for to, which knows nothing. That shows as an end only where the
		// other direction got the error.
		s.broken.Store(true)
		reset(to, from)
	}
}

// reset closes both in the way that shows the other end a reset.
func reset(both ...*net.TCPConn) {
	for _, conn := range both {
		_ = conn.SetLinger(0)
		_ = conn.Close()
	}
}

// stateClosed is TCP_CLOSE of the kernel's net/tcp_states.h: nothing can be sent or received any more.
const stateClosed = 7

// gone reports whether the connection has broken.
func gone(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	closed := true
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err != nil || info.State == stateClosed
	}) // a connection that was closed here has gone, too
	return closed
}
