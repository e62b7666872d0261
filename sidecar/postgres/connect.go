// Package postgres watches one PostgreSQL instance from the sidecar: it samples the sessions, listens to the control
// channel, and asks whether the server has begun to shut down.
//
// It must never get in the server's way. Its sessions are few and time-limited, write nothing, and any of them can be
// closed at once from another goroutine: an open session delays a smart shutdown by up to 180 seconds.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

const (
	// sampleTimeout bounds one sample including the connect: a server that takes longer is not known to be idle.
	sampleTimeout = 3 * time.Second
	// roleExporter is a member of pg_monitor. Peer authentication over the socket admits our operating system user as
	// this role.
	roleExporter = probe.Role
	// roleFallback is the only other role that the socket admits.
	roleFallback        = "postgres"
	maintenanceDatabase = probe.Database
)

// Server is the PostgreSQL instance.
type Server struct {
	socketDirectory string
	port            uint16
	addProbe        func(local netip.AddrPort) (closed func())
	// probeWithin and answerWithin bound a probe, and whatever else is asked of the server. Only tests change them:
	// their server shares the machine with many others.
	probeWithin, answerWithin time.Duration

	// plaintextRefused is set once a startup packet without TLS was rejected.
	plaintextRefused atomic.Bool
}

// NewServer returns the server with a Unix socket for the port in that directory. The server calls addProbe with the
// local address of every probe before its first byte is sent, and the returned function once the probe is closed.
// addProbe may be nil if ShuttingDown is never called.
func NewServer(socketDirectory string, port uint16, addProbe func(local netip.AddrPort) (closed func())) *Server {
	return &Server{
		socketDirectory: socketDirectory, port: port, addProbe: addProbe, probeWithin: probeTimeout, answerWithin: sampleTimeout,
	}
}

// SQLSTATEs of a refusal, as opposed to a failure (PostgreSQL's documentation, appendix A).
const (
	stateInvalidAuthorization = "28000"
	stateInvalidPassword      = "28P01"
	stateInsufficientRights   = "42501"
	stateNoSuchDatabase       = "3D000"
)

// statementTimeout bounds a statement, except for the one that ends sessions.
const statementTimeout = 2 * time.Second

// parameters returns the settings of a session.
func parameters(statementTimeout time.Duration) map[string]string {
	return map[string]string{
		"application_name": contract.ApplicationName,
		// The objects that a statement refers to must not depend on settings of the database.
		"search_path": "pg_catalog",
		// pgx refuses the simple protocol without these two, which settings or the database's encoding may change.
		"client_encoding":             "UTF8",
		"standard_conforming_strings": "on",
		"statement_timeout":           strconv.FormatInt(statementTimeout.Milliseconds(), 10),
		"lock_timeout":                "1s",
		// If the server ended an idle listener, its reconnect would count as activity, and the cluster would never
		// sleep.
		"idle_session_timeout": "0",
		// The statement of a session that we closed ends soon after, without a cancel request.
		"client_connection_check_interval": "100ms",
	}
}

// connect opens a session as the least privileged role of the server. It tries that role first every time, because an
// upgrade of the operator may have created it meanwhile.
func (s *Server) connect(ctx context.Context, database string) (*session, error) {
	opened, err := s.connectAs(ctx, roleExporter, database, statementTimeout)
	if code := sqlState(err); code == stateInvalidAuthorization || code == stateInvalidPassword {
		return s.connectAs(ctx, roleFallback, database, statementTimeout)
	}
	return opened, err
}

func (s *Server) connectAs(
	ctx context.Context, role, database string, statementTimeout time.Duration,
) (*session, error) {
	config, err := pgx.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("make a connection's configuration: %w", err)
	}
	config.Host, config.Port, config.User, config.Database, config.Password = s.socketDirectory, s.port, role, database, ""
	config.Fallbacks = nil
	config.RuntimeParams = parameters(statementTimeout)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, 0
	opened := &session{}
	config.DialFunc = opened.dial
	if opened.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("connect to database %s as %s: %w", database, role, err)
	}
	return opened, nil
}

// address is where the server listens on the loopback interface, which all containers of a pod share.
func (s *Server) address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(s.port)))
}

func sqlState(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}
