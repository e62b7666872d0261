// Package postgres looks at one PostgreSQL instance from beside it: it samples the sessions, listens to the control
// channel, and asks whether the server has begun to shut down.
//
// It must never be in the server's way. Sessions are few, read only and bounded in time, and every one of them can be
// closed at once from another goroutine: a session that stays open makes a smart shutdown wait for 180 seconds.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

const (
	// sampleTimeout bounds one look, connecting included: a server that needs longer is not known to be idle.
	sampleTimeout = 3 * time.Second
	// farewell bounds the polite end of a session.
	farewell = 100 * time.Millisecond
	// roleExporter exists from CloudNativePG 1.28.3, 1.29.1 and 1.30.0 on; it is a member of pg_monitor and logs in over
	// the socket as the operating system user that we are too.
	roleExporter = "cnpg_metrics_exporter"
	// roleFallback is the only other role that the socket lets us be.
	roleFallback = "postgres"
	// maintenanceDatabase is there in every instance.
	maintenanceDatabase = "postgres"
)

// Server says how to reach the instance.
type Server struct {
	// SocketDirectory holds the server's Unix socket.
	SocketDirectory string
	// Port is the server's port; it names the socket too.
	Port uint16
}

// SQLSTATEs that tell a refusal from a failure (PostgreSQL's documentation, appendix A).
const (
	stateInvalidAuthorization = "28000"
	stateInvalidPassword      = "28P01"
	stateInsufficientRights   = "42501"
	stateNoSuchDatabase       = "3D000"
	stateCannotConnectNow     = "57P03"
)

// connect opens a session as the least privileged role that the server has.
func (s Server) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	conn, err := s.connectAs(ctx, roleExporter, database)
	if code := sqlState(err); code == stateInvalidAuthorization || code == stateInvalidPassword {
		return s.connectAs(ctx, roleFallback, database)
	}
	return conn, err
}

func (s Server) connectAs(ctx context.Context, role, database string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("make a connection's configuration: %w", err)
	}
	config.Host, config.Port, config.User, config.Database, config.Password = s.SocketDirectory, s.Port, role, database, ""
	config.Fallbacks = nil
	config.RuntimeParams = map[string]string{
		"application_name":              activity.ApplicationName,
		"default_transaction_read_only": "on",
		"statement_timeout":             "2s",
		"lock_timeout":                  "1s",
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, 0
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to database %s as %s: %w", database, role, err)
	}
	return conn, nil
}

// address is where the server listens on the loopback interface, which the containers of a pod share.
func (s Server) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(s.Port)))
}

func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// holder keeps one session that may be closed at any moment by another goroutine.
type holder struct {
	mutex sync.Mutex
	conn  *pgx.Conn
	busy  bool
}

// take lends the session out for use, nil if there is none.
func (h *holder) take() *pgx.Conn {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.busy = h.conn != nil
	return h.conn
}

// put keeps a session and marks it as in use.
func (h *holder) put(conn *pgx.Conn) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.conn, h.busy = conn, true
}

// release says that nobody uses the session any longer. It reports whether the session is still there.
func (h *holder) release() bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.busy = false
	return h.conn != nil
}

func (h *holder) held() bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.conn != nil
}

// close ends the session at once. One that is in use loses its socket, which its user sees as an error; one that is not
// says goodbye first, so that the server has nothing to complain of.
func (h *holder) close() {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.conn == nil {
		return
	}
	if !h.busy {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		_ = h.conn.Close(ctx)
	} else {
		_ = h.conn.PgConn().Conn().Close()
	}
	h.conn, h.busy = nil, false
}
