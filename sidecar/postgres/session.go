package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// terminateTimeout bounds the write of the Terminate message: a frozen server may not read it.
const terminateTimeout = 100 * time.Millisecond

// errClosed is returned if another goroutine closed the session during its use.
var errClosed = errors.New("the session was closed from our side")

// session is one of our connections. Any goroutine may close it at any time.
type session struct {
	conn *pgx.Conn

	mutex  sync.Mutex
	socket net.Conn
	ended  bool
}

// dial opens the session's socket, once. pgx would dial again only to send a cancel request after a failure: that costs
// one more process in a server that may be about to stop, and a line in its log if the session is already gone.
func (s *session) dial(ctx context.Context, network, address string) (net.Conn, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.socket != nil {
		return nil, net.ErrClosed
	}
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, network, address)
	s.socket = socket
	return socket, err
}

// closeNow closes the session at once, whatever it is doing, without waiting for an answer. It bypasses pgx for the
// Terminate message, because pgx may be executing a statement in another goroutine.
func (s *session) closeNow() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	_ = s.socket.SetWriteDeadline(time.Now().Add(terminateTimeout))
	_, _ = s.socket.Write([]byte{'X', 0, 0, 0, 4}) // Terminate
	_ = s.socket.Close()
}

// holder keeps at most one session, which another goroutine may close, even while it is being opened.
type holder struct {
	mutex   sync.Mutex
	session *session
	stop    context.CancelCauseFunc // ends the current use; nil if none
}

// use begins opening or using the session. The returned context ends with close, or with the returned function, which
// must be called.
func (h *holder) use(ctx context.Context) (context.Context, func()) {
	ctx, stop := context.WithCancelCause(ctx)
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.stop = stop
	return ctx, func() {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.stop = nil
		stop(nil)
	}
}

// current returns the open session, or nil.
func (h *holder) current() *session {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.session
}

// keep stores a session that was just opened. If its context has ended meanwhile, keep closes the session instead.
func (h *holder) keep(ctx context.Context, opened *session) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if ctx.Err() != nil {
		opened.closeNow()
		return context.Cause(ctx)
	}
	h.session = opened
	return nil
}

// close closes the session and ends its current use at once. It may be called from any goroutine.
func (h *holder) close() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.stop != nil {
		h.stop(errClosed)
	}
	if h.session != nil {
		h.session.closeNow()
		h.session = nil
	}
}
