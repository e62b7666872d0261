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
)

// Channel is the name of the control channel.
const Channel = "scale_to_zero"

const (
	// refusedDelay is the wait after a refusal, which only a person can mend; each try is a line in the server's log.
	refusedDelay = time.Minute
	// firstDelay and longestDelay bound the wait after any other failure; it doubles.
	firstDelay, longestDelay = time.Second, 30 * time.Second
)

// RefusedError says that the server will not let us listen in the database.
type RefusedError struct {
	// Database is the database, and Code the SQLSTATE.
	Database, Code string
	// Err is what the server said.
	Err error
}

// Error names the database and what the server said.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("listen in database %s: refused (%s): %v", e.Database, e.Code, e.Err)
}

// Unwrap returns what the server said.
func (e *RefusedError) Unwrap() error { return e.Err }

// Listener listens to the control channel of one database.
type Listener struct {
	server    *Server
	database  string
	notify    func(Notification)
	failed    func(error)
	connected atomic.Bool
	held      holder
	delay     time.Duration // before the next connection; of Run's goroutine only
}

// NewListener makes a listener. notify is called for every notification, failed for every connection that did not come
// about or ended; a refusal is a *[RefusedError]. Neither may block.
func NewListener(server *Server, database string, notify func(Notification), failed func(error)) *Listener {
	return &Listener{server: server, database: database, notify: notify, failed: failed}
}

// Connected reports whether the listener listens.
func (l *Listener) Connected() bool { return l.connected.Load() }

// Run listens until the context ends; then its session is closed at once.
func (l *Listener) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, l.held.close)
	defer stop()
	defer l.held.close()
	listener := &pgxlisten.Listener{
		Connect:        l.connect,
		ReconnectDelay: -1, // connect waits, and for how long depends on what happened
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
	_ = listener.Listen(ctx) // returns the context's error only
	l.connected.Store(false)
}

func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	timer := time.NewTimer(l.delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
	}
	limited, cancel := context.WithTimeout(ctx, sampleTimeout)
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

// nextDelay is the wait after a failure that followed another wait.
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

// handler passes on what pgxlisten delivers.
type handler struct{ listener *Listener }

// HandleNotification passes a notification on.
func (h handler) HandleNotification(_ context.Context, n *pgconn.Notification, _ *pgx.Conn) error {
	notification := ParsePayload(n.Payload)
	notification.At = time.Now()
	h.listener.notify(notification)
	return nil
}

// HandleBacklog runs when LISTEN has taken effect: what was sent before is lost, so it counts as activity.
func (h handler) HandleBacklog(context.Context, string, *pgx.Conn) error {
	h.listener.connected.Store(true)
	h.listener.delay = 0
	h.listener.notify(Notification{Kind: KindBacklog, At: time.Now()})
	return nil
}
