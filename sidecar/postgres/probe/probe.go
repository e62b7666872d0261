// Package probe asks a PostgreSQL server with a startup packet whether it accepts sessions.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// CannotConnectNow is the SQLSTATE of a server that is starting up, recovering or shutting down.
	CannotConnectNow = "57P03"
	// SessionOpened is returned if the server asks for no password (PostgreSQL's successful_completion).
	SessionOpened = "00000"
	// Role exists since CloudNativePG 1.28.3, 1.29.1 and 1.30.0 and has no password. A server asks for a password even
	// if it does not know the role.
	Role = "cnpg_metrics_exporter"
	// Database exists in every instance.
	Database = "postgres"
	// maximumAnswer bounds the answer, in bytes; the server's own answers take a few hundred.
	maximumAnswer = 16 << 10
)

// ErrUnreachable means that the server did not answer.
var ErrUnreachable = errors.New("the server does not answer")

// Startup sends a startup packet on a new connection and returns the SQLSTATE of the server's answer, or an empty code
// if the server asks for a password. It ends with the context, and the connection cannot be used afterwards. Errors are
// [ErrUnreachable].
//
// With CloudNativePG's last rule in pg_hba.conf the server asks for a password, so that no session is opened. Where a
// rule trusts the client, a session is opened and terminated in order: when Startup returns, the statistics have
// counted it. While the server does not accept sessions, each packet is a line in its log.
func Startup(ctx context.Context, conn net.Conn) (code string, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		// A sample that finds a session which the server has not ended yet must know whose it is.
		Parameters: map[string]string{"user": Role, "database": Database, "application_name": contract.ApplicationName},
	}).Encode(nil)
	if err != nil {
		return "", fmt.Errorf("%w: encode a startup packet: %w", ErrUnreachable, err)
	}
	if _, err := conn.Write(packet); err != nil {
		return "", fmt.Errorf("%w: send a startup packet: %w", ErrUnreachable, err)
	}
	code, err = readAnswer(conn)
	if code == SessionOpened {
		terminate, _ := (&pgproto3.Terminate{}).Encode(nil)
		_, _ = conn.Write(terminate) // if it is lost, the server notices the closed connection
	}
	return code, err
}

// readAnswer reads the server's first message or, if the server trusts the client, all messages until the session is
// open.
func readAnswer(conn io.Reader) (string, error) {
	frontend := pgproto3.NewFrontend(conn, io.Discard)
	frontend.SetMaxBodyLen(maximumAnswer)
	for trusted := false; ; {
		answer, err := frontend.Receive()
		if err != nil {
			return "", fmt.Errorf("%w: receive an answer: %w", ErrUnreachable, err)
		}
		switch answer := answer.(type) {
		case *pgproto3.ErrorResponse:
			return answer.Code, nil
		case *pgproto3.ReadyForQuery:
			return SessionOpened, nil
		case *pgproto3.AuthenticationOk:
			trusted = true
		default:
			if !trusted {
				return "", nil
			}
		}
	}
}
