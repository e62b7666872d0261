package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgxlisten"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

// Channel is the name of the control channel.
const Channel = "scale_to_zero"

const (
	// refusedDelay is the wait after a refusal: only a person can fix its cause, and each attempt is a line in the
	// server's log.
	refusedDelay = time.Minute
	// firstDelay and longestDelay bound the wait after any other failure; it doubles each time.
	firstDelay, longestDelay = time.Second, 30 * time.Second
)

// RefusedError means that the server does not let us listen in the database.
type RefusedError struct {
	// Code is the SQLSTATE.
	Database, Code string
	// Err is the server's error.
	Err error
}

// Error names the database and the server's error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("listen in database %s: refused (%s): %v", e.Database, e.Code, e.Err)
}

// Unwrap returns the server's error.
func (e *RefusedError) Unwrap() error { return e.Err }

// Listener listens to the control channel of one database.
type Listener struct {
	server    *Server
	database  string
	notify    func(Notification)
	failed    func(error)
	connected atomic.Bool
	held      holder
	delay     time.Duration // before the next connection; used by Run's goroutine only
}

// NewListener makes a listener. notify is called for every notification, failed for every connection that failed or
// ended; a refusal is a *[RefusedError]. Neither may block.
func NewListener(server *Server, database string, notify func(Notification), failed func(error)) *Listener {
	return &Listener{server: server, database: database, notify: notify, failed: failed}
}

// Connected reports whether the listener listens.
func (l *Listener) Connected() bool { return l.connected.Load() }

// Run listens until the context ends, then closes its session at once.
func (l *Listener) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, l.held.close)
	defer stop()
	defer l.held.close()
	listener := &pgxlisten.Listener{
		Connect:        l.connect,
		ReconnectDelay: -1, // connect does the waiting, because the delay depends on the error
		LogError: func(ctx context.Context, err error) {
			l.connected.Store(false)
			l.held.close()
			if ctx.Err() == nil {
				err = l.classify(err)
				l.delay = nextDelay(l.delay, err)
				l.failed(err)
			}
		},
	}
	listener.Handle(Channel, handler{l})
	_ = listener.Listen(ctx) // returns only the context's error
	l.connected.Store(false)
}

func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	if !process.Pause(ctx, l.delay) {
		return nil, ctx.Err()
	}
	limited, cancel := context.WithTimeout(ctx, l.server.answerWithin)
	defer cancel()
	opened, err := l.server.connect(limited, l.database)
	if err != nil {
		return nil, err
	}
	if err := l.held.keep(ctx, opened); err != nil {
		return nil, fmt.Errorf("keep the session: %w", err)
	}
	return opened.conn, nil
}

// nextDelay returns the wait after a failure, given the previous wait.
func nextDelay(last time.Duration, err error) time.Duration {
	var refused *RefusedError
	if errors.As(err, &refused) {
		return refusedDelay
	}
	return min(max(2*last, firstDelay), longestDelay)
}

func (l *Listener) classify(err error) error {
	switch code := sqlState(err); code {
	case stateInsufficientRights, stateNoSuchDatabase, stateInvalidAuthorization, stateInvalidPassword:
		return &RefusedError{Database: l.database, Code: code, Err: err}
	default:
		return err
	}
}

// handler forwards what pgxlisten delivers.
type handler struct{ listener *Listener }

// HandleNotification forwards a notification.
func (h handler) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	notification := ParsePayload(n.Payload)
	notification.At = time.Now()
	h.listener.notify(notification)
	return nil
}

// HandleBacklog runs once LISTEN has taken effect. Earlier notifications are lost, so this counts as activity. The
// functions for the channel see from the session's new name that it listens.
func (h handler) HandleBacklog(ctx context.Context, _ string, conn *pgx.Conn) error {
	limited, cancel := context.WithTimeout(ctx, h.listener.server.answerWithin)
	defer cancel()
	if _, err := conn.Exec(limited, "SET application_name = '"+contract.ListeningApplicationName+"'"); err != nil {
		return fmt.Errorf("name the session: %w", err)
	}
	h.listener.connected.Store(true)
	h.listener.delay = 0
	h.listener.notify(Notification{Kind: KindBacklog, At: time.Now()})
	return nil
}
