package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// shutdownTimeout bounds the question whether the server accepts sessions.
const shutdownTimeout = time.Second

// ErrUnreachable says that the server could not be asked.
var ErrUnreachable = errors.New("the server cannot be asked")

// ShuttingDown tells whether the server turns new sessions away because it is starting up or shutting down (57P03). It
// sends a startup packet over the loopback interface and hangs up at the answer: CloudNativePG's last rule there is
// scram-sha-256, so that the answer is a question for the password. No login takes place and the server logs nothing; over
// the Unix socket peer authentication would complete the login. Errors are [ErrUnreachable].
func (s Server) ShuttingDown(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.address())
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": roleExporter, "database": maintenanceDatabase},
	}).Encode(nil)
	if err != nil {
		return false, fmt.Errorf("encode a startup packet: %w", err)
	}
	if _, err := conn.Write(packet); err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return readAnswer(conn)
}

// readAnswer reads the first message that the server sends.
func readAnswer(conn io.Reader) (bool, error) {
	frontend := pgproto3.NewFrontend(conn, io.Discard)
	frontend.SetMaxBodyLen(maximumAnswer)
	message, err := frontend.Receive()
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	refused, is := message.(*pgproto3.ErrorResponse)
	return is && refused.Code == stateCannotConnectNow, nil
}

// maximumAnswer bounds, in bytes, the answer that is read; the server's own are a few hundred.
const maximumAnswer = 16 << 10
