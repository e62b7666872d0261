package startup

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// firstBuffer is the size in bytes of a client's first buffer: a startup packet of psql has about 90, a ClientHello 300
// to 1,800. A thousand clients that send nothing are then half a megabyte.
const firstBuffer = 512

// input is what the client has sent since the last answer. It reads what is there, not only what is asked for: that
// shows bytes that came before an answer, as it does in the server.
type input struct {
	from   io.Reader
	buffer []byte
	// read and limit count the bytes since the client came.
	read, limit int
}

// peek returns the first n bytes, and reads until they are there.
func (in *input) peek(n int) ([]byte, error) {
	for len(in.buffer) < n {
		if err := in.more(); err != nil {
			return nil, err
		}
	}
	return in.buffer[:n], nil
}

// all is what has been read since the last answer.
func (in *input) all() []byte { return in.buffer }

// more reads once, into a buffer that doubles when it is full.
func (in *input) more() error {
	room := cap(in.buffer) - len(in.buffer)
	if room == 0 {
		grown := make([]byte, len(in.buffer), max(firstBuffer, 2*len(in.buffer)))
		copy(grown, in.buffer)
		in.buffer, room = grown, cap(grown)-len(grown)
	}
	room = min(room, in.limit-in.read)
	if room == 0 {
		return &Error{Reason: ReasonTooLarge, err: fmt.Errorf("more than %d bytes", in.limit)}
	}
	n, err := in.from.Read(in.buffer[len(in.buffer) : len(in.buffer)+room])
	in.buffer, in.read = in.buffer[:len(in.buffer)+n], in.read+n
	if n > 0 || err == nil {
		return nil // an error that came with bytes comes again
	}
	return in.ended(err)
}

// ended classifies the end of a connection.
func (in *input) ended(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &Error{Reason: ReasonTimeout, err: err}
	case in.read == 0:
		return &Error{Reason: ReasonBare, err: err}
	default:
		return &Error{Reason: ReasonIncomplete, err: err}
	}
}

// answer drops the request, behind which nothing may have come yet, and writes one byte.
func (in *input) answer(client io.Writer, request int, answer byte) error {
	if ahead := len(in.buffer) - request; ahead > 0 {
		return &Error{Reason: ReasonPipelined, err: fmt.Errorf("%d bytes came before the answer %q", ahead, answer)}
	}
	in.buffer = in.buffer[:0]
	if _, err := client.Write([]byte{answer}); err != nil {
		return in.ended(err)
	}
	return nil
}
