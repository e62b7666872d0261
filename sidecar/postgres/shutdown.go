package postgres

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// probeTimeout bounds the question whether the server accepts sessions.
const probeTimeout = time.Second

// ErrUnreachable says that the server could not be asked.
var ErrUnreachable = probe.ErrUnreachable

// ShuttingDown reports whether the server turns new sessions away because it is starting up or shutting down. Errors are
// [ErrUnreachable].
//
// It sends a startup packet over the loopback interface. Over the Unix socket peer authentication asks for no password: each
// packet would be a whole session. That is done only where a rule of the user's rejects what comes without TLS, since each
// rejection is a line in the server's log.
func (s *Server) ShuttingDown(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if s.plaintextRefused.Load() {
		return s.refusesLogin(ctx)
	}
	code, err := s.probe(ctx)
	switch code {
	case stateInvalidAuthorization:
		s.plaintextRefused.Store(true)
	case probe.SessionOpened:
		s.maintenanceSessions.Add(1)
	}
	return code == probe.CannotConnectNow, err
}

// refusesLogin asks by logging in over the Unix socket.
func (s *Server) refusesLogin(ctx context.Context) (bool, error) {
	opened, err := s.connect(ctx, maintenanceDatabase)
	if err == nil {
		opened.closeNow()
		return false, nil
	}
	code := sqlState(err)
	if code == "" {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return code == probe.CannotConnectNow, nil
}

// probe asks with a startup packet, and returns the SQLSTATE of the answer.
func (s *Server) probe(ctx context.Context) (string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.address())
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }()
	s.addProbe(conn.LocalAddr().(*net.TCPAddr).AddrPort())
	return probe.Startup(ctx, conn)
}
