package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// shutdownTimeout bounds the question whether the server accepts sessions.
const shutdownTimeout = time.Second

// ErrUnreachable says that the server could not be asked.
var ErrUnreachable = errors.New("the server cannot be asked")

// plaintextRefused remembers the servers, of which a sidecar has one, that turn a startup packet without TLS away.
var plaintextRefused sync.Map

// ShuttingDown tells whether the server turns new sessions away because it is starting up or shutting down (57P03). Errors
// are [ErrUnreachable].
//
// It sends a startup packet over the loopback interface and hangs up at the answer. CloudNativePG's last rule there asks
// for a password, so that no login takes place and nothing is logged. Over the Unix socket peer authentication asks
// nothing: each packet would be a whole session, which takes as long but counts in pg_stat_database. That is done only
// where a rule of the user's rejects what comes without TLS, since each rejection is a line in the server's log.
func (s Server) ShuttingDown(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	if _, refused := plaintextRefused.Load(s); refused {
		return s.refusesLogin(ctx)
	}
	code, err := s.knock(ctx)
	if code == stateInvalidAuthorization {
		plaintextRefused.Store(s, true)
	}
	return code == stateCannotConnectNow, err
}

// refusesLogin asks by logging in over the Unix socket.
func (s Server) refusesLogin(ctx context.Context) (bool, error) {
	opened, err := s.connect(ctx, maintenanceDatabase)
	if err == nil {
		opened.hangUp()
		return false, nil
	}
	code := sqlState(err)
	if code == "" {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return code == stateCannotConnectNow, nil
}

// knock sends a startup packet and returns the SQLSTATE of the answer, empty if the answer is not an error.
func (s Server) knock(ctx context.Context) (string, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.address())
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": roleExporter, "database": maintenanceDatabase},
	}).Encode(nil)
	if err != nil {
		return "", fmt.Errorf("encode a startup packet: %w", err)
	}
	if _, err := conn.Write(packet); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return readAnswer(conn)
}

// maximumAnswer bounds, in bytes, the answer that is read; the server's own are a few hundred.
const maximumAnswer = 16 << 10

// readAnswer reads the first message that the server sends, and returns its SQLSTATE if it is an error.
func readAnswer(conn io.Reader) (string, error) {
	frontend := pgproto3.NewFrontend(conn, io.Discard)
	frontend.SetMaxBodyLen(maximumAnswer)
	message, err := frontend.Receive()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if refused, is := message.(*pgproto3.ErrorResponse); is {
		return refused.Code, nil
	}
	return "", nil
}
