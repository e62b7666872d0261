package startup

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// SQLSTATE is the class of a refusal, by which clients tell whether another attempt may help.
type SQLSTATE string

// The classes that a client is refused with before a server has spoken.
const (
	// CannotConnectNow is also the server's own answer while it starts: clients know to come again.
	CannotConnectNow SQLSTATE = "57P03"
	// TooManyConnections is the server's own answer at max_connections.
	TooManyConnections SQLSTATE = "53300"
)

// Refuse encodes the answer that ends a session before it began. Only a [Plain] client understands it. The message is
// read by a person.
func Refuse(state SQLSTATE, message string) ([]byte, error) {
	packet, err := (&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: string(state), Message: message,
	}).Encode(nil)
	if err != nil {
		return nil, fmt.Errorf("encode a refusal: %w", err)
	}
	return packet, nil
}
