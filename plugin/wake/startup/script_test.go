package startup

import (
	"encoding/binary"
	"io"
)

// script is a client that sends one part, and the next only once the part before has been answered.
type script struct {
	parts [][]byte
	// chunk is how many bytes arrive at once, 0 for a whole part.
	chunk int
	// end is what the connection returns when the client says no more, io.EOF if it is nil.
	end error

	sent    int
	answers []byte
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.answers) >= len(s.parts) || s.sent == len(s.parts[len(s.answers)]) {
		if s.end != nil {
			return 0, s.end
		}
		return 0, io.EOF
	}
	rest := s.parts[len(s.answers)][s.sent:]
	if s.chunk > 0 {
		rest = rest[:min(s.chunk, len(rest))]
	}
	n := copy(p, rest)
	s.sent += n
	return n, nil
}

func (s *script) Write(p []byte) (int, error) {
	s.answers, s.sent = append(s.answers, p...), 0
	return len(p), nil
}

// packet is one with a length and a code before the body.
func packet(code uint32, body string) []byte {
	p := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(p, code), body...)
}

// startup is a StartupMessage of protocol 3.0.
func startup(parameters string) []byte { return packet(3<<16, parameters) }

var gssRequest = packet(codeGSS, "")

// records cuts a handshake message into TLS records of at most size bytes.
func records(message []byte, size int) []byte {
	var out []byte
	for len(message) > 0 {
		n := min(size, len(message))
		out = append(out, handshake, 3, 1, byte(n>>8), byte(n))
		out, message = append(out, message[:n]...), message[n:]
	}
	return out
}

// vector is a list with its length in so many bytes before it.
func vector(width int, content ...string) string {
	var all string
	for _, part := range content {
		all += part
	}
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(all)))
	return string(length[8-width:]) + all
}

// extension is one of a ClientHello.
func extension(kind byte, body string) string { return "\x00" + string(kind) + vector(2, body) }

func serverName(name string) string {
	return extension(extensionServerName, vector(2, "\x00", vector(2, name)))
}

func protocols(name string) string {
	return extension(extensionProtocols, vector(2, vector(1, name)))
}

// clientHello is a handshake message with these extensions; without any it has no list of them.
func clientHello(extensions ...string) []byte {
	body := "\x03\x03" + string(make([]byte, lengthRandom)) + vector(1) + vector(2, "\x13\x01") + vector(1, "\x00")
	if len(extensions) > 0 {
		body += vector(2, extensions...)
	}
	return []byte("\x01" + vector(3, body))
}
