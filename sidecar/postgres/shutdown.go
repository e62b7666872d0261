package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres/probe"
)

// probeTimeout bounds one probe.
const probeTimeout = time.Second

// ErrUnreachable means that the server could not be asked, and ErrTimeout, beside it, that it did not answer in time.
var (
	ErrUnreachable = probe.ErrUnreachable
	ErrTimeout     = errors.New("no answer in time")
)

// ShuttingDown reports whether the server rejects new sessions because it is starting up or shutting down. Errors are
// [ErrUnreachable], and [ErrTimeout] if the server may yet answer.
//
// It sends a startup packet over the loopback interface. Over the Unix socket, peer authentication needs no password,
// so that each probe would be a whole session. The socket is used only where the user's pg_hba.conf rejects connections
// without TLS, because each rejection is a line in the server's log.
func (s *Server) ShuttingDown(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.probeWithin, ErrTimeout)
	defer cancel()
	refuses, err := s.refusesSessions(ctx)
	if err != nil && errors.Is(context.Cause(ctx), ErrTimeout) {
		err = errors.Join(ErrTimeout, err)
	}
	return refuses, err
}

func (s *Server) refusesSessions(ctx context.Context) (bool, error) {
	if s.plaintextRefused.Load() {
		return s.refusesLogin(ctx)
	}
	code, err := s.probe(ctx)
	if code == stateInvalidAuthorization {
		s.plaintextRefused.Store(true)
	}
	return code == probe.CannotConnectNow, err
}

// Accepts reports whether the server accepts sessions. Errors are [ErrUnreachable]. It sends a startup packet over the
// Unix socket, which neither depends on the user's rules for networks nor is reported as the end of a client. Where the
// server accepts it, it is a session.
func (s *Server) Accepts(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.probeWithin)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(s.socketDirectory, ".s.PGSQL."+strconv.Itoa(int(s.port))))
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }()
	code, err := probe.Startup(ctx, conn)
	return err == nil && code != probe.CannotConnectNow, err
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
	closed := s.addProbe(conn.LocalAddr().(*net.TCPAddr).AddrPort())
	defer func() {
		_ = conn.Close()
		closed()
	}()
	return probe.Startup(ctx, conn)
}
