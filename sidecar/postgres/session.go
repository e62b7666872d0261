package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// terminateTimeout bounds the message that ends a session in order: a frozen server may leave no room for it.
const terminateTimeout = 100 * time.Millisecond

// errClosed is the error of whoever uses a session that another goroutine has closed.
var errClosed = errors.New("the session was closed from our side")

// session is a connection of ours, which any goroutine may end at any moment.
type session struct {
	conn *pgx.Conn

	mutex  sync.Mutex
	socket net.Conn
	ended  bool
}

// dial makes the session's socket, once. pgx dials again only to send a cancel request when a connection has failed: one
// more process for a server that may be about to end, and a line in its log if the session is gone already.
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

// closeNow ends the session at once, whatever it is doing, and waits for no answer. The Terminate message is written past pgx, which
// may be in the middle of a statement in another goroutine.
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

// holder keeps at most one session, which another goroutine may end, also while it is being opened.
type holder struct {
	mutex   sync.Mutex
	session *session
	stop    context.CancelCauseFunc // ends the use that is going on; nil: none is
}

// use begins to open or to use the session. The context ends with close, or when the returned function is called, as it
// must be.
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

// current is the session that is held, nil if there is none.
func (h *holder) current() *session {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.session
}

// keep takes a session that has just been opened, unless its context has ended meanwhile: then it ends the session too.
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

// close ends the session, and the use that is going on, at once. It may be called from any goroutine.
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
