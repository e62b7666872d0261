package startup

import "fmt"

// Reason says why what came is no startup packet. The list is closed: it labels metrics.
type Reason string

// The reasons.
const (
	// ReasonBare is a connection that ended before its first byte: monitoring, a port scan.
	ReasonBare Reason = "bare_connect"
	// ReasonIncomplete is a connection that ended within its startup packet, also a client that did not like the answer
	// S.
	ReasonIncomplete Reason = "incomplete"
	// ReasonGarbage is what no PostgreSQL client sends.
	ReasonGarbage Reason = "garbage"
	// ReasonPipelined is a request for encryption that did not wait for its answer. The server refuses it too: a
	// third party may have inserted the bytes.
	ReasonPipelined Reason = "pipelined"
	// ReasonTooLarge is a startup packet that is longer than the caller's limit.
	ReasonTooLarge Reason = "too_large"
	// ReasonTimeout is a startup packet that took longer than the caller's deadline.
	ReasonTimeout Reason = "timeout"
)

// Reasons is the closed list.
func Reasons() []Reason {
	return []Reason{ReasonBare, ReasonIncomplete, ReasonGarbage, ReasonPipelined, ReasonTooLarge, ReasonTimeout}
}

// Error says that what came is no startup packet. It holds nothing that the client sent but lengths and codes.
type Error struct {
	Reason Reason
	err    error
}

// Error is for logs.
func (e *Error) Error() string {
	return fmt.Sprintf("read the startup packet: %s: %v", e.Reason, e.err)
}

// Unwrap is what the connection returned, or what is wrong with the bytes.
func (e *Error) Unwrap() error { return e.err }

func garbage(err error) error { return &Error{Reason: ReasonGarbage, err: err} }
