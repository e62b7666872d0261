package waker

import (
	"context"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	// knockTimeout bounds one question.
	knockTimeout = time.Second
	// maximumAnswer bounds, in bytes, the answer that is read; the server's own are a few hundred.
	maximumAnswer = 16 << 10
	// roleWithoutPassword exists from CloudNativePG 1.28.3, 1.29.1 and 1.30.0 on and cannot log in over TCP.
	roleWithoutPassword = "cnpg_metrics_exporter"
	maintenanceDatabase = "postgres"
	// stateCannotConnectNow is PostgreSQL's cannot_connect_now: it starts, recovers or shuts down.
	stateCannotConnectNow = "57P03"
)

// Knock tells whether PostgreSQL accepts sessions: whether it answers a startup packet with anything but 57P03. It hangs up
// at the answer, which by CloudNativePG's last rule asks for a password, so that nobody logs in and nothing is logged. While
// PostgreSQL recovers, each question is a line in its log.
func Knock(ctx context.Context, address netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, knockTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if conn.SetDeadline(deadline) != nil {
		return false
	}
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": roleWithoutPassword, "database": maintenanceDatabase},
	}).Encode(nil)
	if err != nil {
		return false
	}
	if _, err := conn.Write(packet); err != nil {
		return false
	}
	frontend := pgproto3.NewFrontend(conn, io.Discard)
	frontend.SetMaxBodyLen(maximumAnswer)
	message, err := frontend.Receive()
	if err != nil {
		return false
	}
	refused, is := message.(*pgproto3.ErrorResponse)
	return !is || refused.Code != stateCannotConnectNow
}
