// Package startup reads what a PostgreSQL client sends first, up to the point at which it waits for a server: its
// startup packet, or its ClientHello where it speaks TLS. It decides whether that is a client at all, so that a port
// scan wakes nothing, and keeps the bytes so that a server gets exactly what the client sent.
//
// The rules are those of the server's own src/backend/tcop/backend_startup.c, PostgreSQL 18, and stricter where the
// server is lenient towards what no client sends.
package startup

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Kind tells how the client speaks, and with it how a server must be spoken to.
type Kind int

// The kinds of a startup packet.
const (
	// Plain is a StartupMessage without TLS.
	Plain Kind = iota
	// TLS is a ClientHello after SSLRequest: a server must have answered SSLRequest before it gets the bytes.
	TLS
	// DirectTLS is a ClientHello without SSLRequest (sslnegotiation=direct, PostgreSQL 17).
	DirectTLS
	// Cancel is a CancelRequest without TLS. No answer is expected.
	Cancel
)

// String is the kind's name in logs.
func (k Kind) String() string {
	switch k {
	case Plain:
		return "plain"
	case TLS:
		return "tls"
	case DirectTLS:
		return "direct_tls"
	case Cancel:
		return "cancel"
	default:
		return "unknown"
	}
}

// Replication is what a startup packet asks for under replication=.
type Replication int

// The kinds of replication, from the server's own reading of the parameter.
const (
	NoReplication Replication = iota
	// PhysicalReplication is a true replication=.
	PhysicalReplication
	// LogicalReplication is replication=database.
	LogicalReplication
)

// Packet is what a client sent first.
type Packet struct {
	Kind Kind
	// Bytes is what a server must get: everything that was read since the last answer, so also what the client sent
	// behind its startup packet without waiting.
	Bytes []byte
	// User and Database are known of a Plain startup packet only. Database is the user's name where none is asked for,
	// as in the server.
	User, Database string
	// Replication is known of a Plain startup packet only.
	Replication Replication
	// ServerName is the name in the ClientHello (SNI), empty where it has none.
	ServerName string
}

// SSLRequest is the packet that asks a server for TLS. The caller must not change it.
var SSLRequest = []byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

// The codes that stand where a StartupMessage has its version (src/include/libpq/pqcomm.h).
const (
	codeCancel = 1234<<16 | 5678
	codeSSL    = 1234<<16 | 5679
	codeGSS    = 1234<<16 | 5680
)

const (
	lengthRequest = 8  // of an SSLRequest or GSSENCRequest, and of every packet at least
	lengthCancel  = 16 // of a CancelRequest in protocol 3.0: length, code, process and four bytes of key
	// lengthCancelMost is that of protocol 3.2, whose keys are up to 256 bytes.
	lengthCancelMost = lengthCancel - 4 + 256
	// lengthStartupMost is MAX_STARTUP_PACKET_LENGTH (pqcomm.h) and the length itself, which the server does not count.
	lengthStartupMost = 10000 + 4
	// handshake is the first byte of a TLS record that holds a handshake message.
	handshake = 0x16
)

// Read reads the startup packet of a client, and answers its SSLRequest with S and its GSSENCRequest with N. It reads
// at most limit bytes. The caller sets the connection's deadline, which bounds the whole, and hangs up on an error:
// that is always an [*Error]. A packet with an error has the kind alone: a client that begins TLS must be told nothing.
func Read(client io.ReadWriter, limit int) (Packet, error) {
	in := &input{from: client, limit: limit}
	first, err := in.peek(1)
	if err != nil {
		return Packet{}, err
	}
	if first[0] == handshake {
		return readHello(in, DirectTLS)
	}
	asked := false
	for {
		packet, code, err := readPacket(in)
		switch {
		case err != nil:
			return Packet{}, err
		case code == codeGSS && !asked:
			asked = true
			err = in.answer(client, lengthRequest, 'N')
		case code == codeSSL:
			if err := in.answer(client, lengthRequest, 'S'); err != nil {
				return Packet{}, err
			}
			return readHello(in, TLS)
		case code == codeCancel:
			return readCancel(in, packet)
		case code>>16 == 3:
			return readStartup(in, packet)
		default:
			return Packet{}, garbage(fmt.Errorf("code %d is not expected here", code))
		}
		if err != nil {
			return Packet{}, err
		}
	}
}

// readPacket reads one packet and returns it and the code in it. The packet stays in the input.
func readPacket(in *input) (packet []byte, code uint32, err error) {
	header, err := in.peek(lengthRequest)
	if err != nil {
		return nil, 0, err
	}
	length, code := binary.BigEndian.Uint32(header), binary.BigEndian.Uint32(header[4:])
	if !lengthFits(length, code) {
		return nil, 0, garbage(fmt.Errorf("a packet with code %d cannot have %d bytes", code, length))
	}
	packet, err = in.peek(int(length))
	return packet, code, err
}

// lengthFits reports whether a packet with that code may be that long. It is asked before the packet is read.
func lengthFits(length, code uint32) bool {
	switch code {
	case codeSSL, codeGSS:
		return length == lengthRequest
	case codeCancel:
		return length >= lengthCancel && length <= lengthCancelMost
	default:
		return length > lengthRequest && length <= lengthStartupMost
	}
}

// readCancel takes a CancelRequest, behind which nothing may come.
func readCancel(in *input, packet []byte) (Packet, error) {
	if len(packet) != len(in.all()) {
		return Packet{}, garbage(fmt.Errorf("%d bytes come behind a CancelRequest", len(in.all())-len(packet)))
	}
	return Packet{Kind: Cancel, Bytes: slices.Clone(packet)}, nil
}

// readStartup takes a StartupMessage.
func readStartup(in *input, packet []byte) (Packet, error) {
	parsed, err := parseParameters(packet[lengthRequest:])
	if err != nil {
		return Packet{}, garbage(err)
	}
	parsed.Kind, parsed.Bytes = Plain, slices.Clone(in.all())
	return parsed, nil
}

// readHello takes a ClientHello. The packet has its kind with an error, too.
func readHello(in *input, kind Kind) (Packet, error) {
	packet := Packet{Kind: kind}
	hello, err := collectHello(in)
	if err != nil {
		return packet, err
	}
	parsed, err := parseHello(hello)
	if err != nil {
		return packet, garbage(err)
	}
	if kind == DirectTLS && !slices.Contains(parsed.protocols, "postgresql") {
		return packet, garbage(fmt.Errorf("a ClientHello without SSLRequest does not ask for the protocol postgresql"))
	}
	packet.Bytes, packet.ServerName = slices.Clone(in.all()), parsed.serverName
	return packet, nil
}
