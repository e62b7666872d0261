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
)

const (
	// CannotConnectNow is the SQLSTATE of a server that is starting up, recovering or shutting down.
	CannotConnectNow = "57P03"
	// SessionOpened is returned for a server that asks for no password (PostgreSQL's successful_completion).
	SessionOpened = "00000"
	// Role exists from CloudNativePG 1.28.3, 1.29.1 and 1.30.0 on and has no password. A server that does not know a role asks
	// for a password all the same.
	Role = "cnpg_metrics_exporter"
	// Database is there in every instance.
	Database = "postgres"
	// maximumAnswer bounds, in bytes, the answer that is read; the server's own are a few hundred.
	maximumAnswer = 16 << 10
)

// ErrUnreachable says that the server did not answer.
var ErrUnreachable = errors.New("the server does not answer")

// Startup sends a startup packet on a connection that has just been opened, and returns the SQLSTATE of the server's answer,
// empty if it asks for a password. It ends with the context, and the connection is of no use afterwards. Errors are
// [ErrUnreachable].
//
// By CloudNativePG's last rule in pg_hba.conf the server asks for a password, so that nobody logs in. Where a rule trusts the
// client, a session is opened, and ended in order: when Startup returns, the statistics have counted it. While the server does
// not accept sessions, each packet is a line in its log.
func Startup(ctx context.Context, conn net.Conn) (code string, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": Role, "database": Database},
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
		_, _ = conn.Write(terminate) // a server that misses it notices that the connection is closed
	}
	return code, err
}

// readAnswer reads what a server answers: the first message, or, if it trusts the client, everything until the session is open.
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
