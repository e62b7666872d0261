package postgres

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// probeTimeout bounds one probe.
const probeTimeout = time.Second

// ErrUnreachable means that the server could not be asked.
var ErrUnreachable = probe.ErrUnreachable

// ShuttingDown reports whether the server rejects new sessions because it is starting up or shutting down. Errors are
// [ErrUnreachable].
//
// It sends a startup packet over the loopback interface. Over the Unix socket, peer authentication needs no password, so that
// each probe would be a whole session. The socket is used only where the user's pg_hba.conf rejects connections without TLS,
// since each rejection is a line in the server's log.
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

// probe sends a startup packet and returns the SQLSTATE of the answer.
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
