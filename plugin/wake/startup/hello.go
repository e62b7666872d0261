package startup

import (
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
)

const (
	lengthRecordHeader  = 5       // type, version and length (RFC 8446, section 5.1)
	lengthRecordMost    = 1 << 14 // of a record that is not encrypted
	lengthMessageHeader = 4       // type and length of a handshake message (section 4)
	typeClientHello     = 1
	versionMajor        = 3 // of every TLS
	lengthRandom        = 32
	lengthSessionMost   = 32

	extensionServerName = 0  // RFC 6066
	extensionProtocols  = 16 // RFC 7301
	nameTypeHost        = 0
)

// collectHello reads TLS records until the handshake message in them is whole, and returns it without its header. A
// client waits for the server behind its ClientHello, so the message must end where its record does.
func collectHello(in *input) ([]byte, error) {
	var message []byte
	for offset := 0; ; {
		header, err := in.peek(offset + lengthRecordHeader)
		if err != nil {
			return nil, err
		}
		length, err := recordLength(header[offset:])
		if err != nil {
			return nil, garbage(err)
		}
		record, err := in.peek(offset + lengthRecordHeader + length)
		if err != nil {
			return nil, err
		}
		message = append(message, record[offset+lengthRecordHeader:]...)
		offset += lengthRecordHeader + length
		hello, whole, err := cutHello(message, in.limit)
		if whole || err != nil {
			return hello, err
		}
	}
}

// recordLength reads the header of a record and returns how many bytes follow it.
func recordLength(header []byte) (int, error) {
	length := int(header[3])<<8 | int(header[4])
	if header[0] != handshake || header[1] != versionMajor || header[2] > 4 {
		return 0, errors.New("no TLS handshake record")
	}
	if length == 0 || length > lengthRecordMost {
		return 0, fmt.Errorf("a handshake record cannot have %d bytes", length)
	}
	return length, nil
}

// cutHello returns the ClientHello if the records so far hold it whole.
func cutHello(message []byte, limit int) (hello []byte, whole bool, err error) {
	if message[0] != typeClientHello {
		return nil, false, garbage(fmt.Errorf("a handshake cannot begin with message %d", message[0]))
	}
	if len(message) < lengthMessageHeader {
		return nil, false, nil
	}
	length := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
	got := len(message) - lengthMessageHeader
	switch {
	case length > limit:
		return nil, false, &Error{Reason: ReasonTooLarge, err: fmt.Errorf("a ClientHello of %d bytes", length)}
	case got > length:
		return nil, false, garbage(fmt.Errorf("%d bytes come behind the ClientHello in its record", got-length))
	default:
		return message[lengthMessageHeader:], got == length, nil
	}
}

// hello is what is read out of a ClientHello.
type hello struct {
	serverName string
	protocols  []string
}

// parseHello reads a ClientHello (RFC 8446, section 4.1.2) without its header. Its extensions may be missing, as in TLS
// 1.2.
func parseHello(message []byte) (hello, error) {
	input := cryptobyte.String(message)
	var version uint16
	var random []byte
	var session, ciphers, compressions cryptobyte.String
	if !input.ReadUint16(&version) || !input.ReadBytes(&random, lengthRandom) ||
		!input.ReadUint8LengthPrefixed(&session) ||
		!input.ReadUint16LengthPrefixed(&ciphers) || !input.ReadUint8LengthPrefixed(&compressions) {
		return hello{}, errors.New("the ClientHello is cut short")
	}
	switch {
	case version < versionMajor<<8|1 || version > versionMajor<<8|3:
		return hello{}, fmt.Errorf("the ClientHello has version %#04x", version)
	case len(session) > lengthSessionMost, len(ciphers) == 0, len(ciphers)%2 != 0, len(compressions) == 0:
		return hello{}, errors.New("a list in the ClientHello has a wrong length")
	case input.Empty():
		return hello{}, nil
	}
	var extensions cryptobyte.String
	if !input.ReadUint16LengthPrefixed(&extensions) || !input.Empty() {
		return hello{}, errors.New("the extensions of the ClientHello have a wrong length")
	}
	return parseExtensions(extensions)
}

// parseExtensions reads the extensions, of which each may come once.
func parseExtensions(extensions cryptobyte.String) (hello, error) {
	var parsed hello
	seen := map[uint16]bool{}
	for !extensions.Empty() {
		var kind uint16
		var body cryptobyte.String
		if !extensions.ReadUint16(&kind) || !extensions.ReadUint16LengthPrefixed(&body) {
			return hello{}, errors.New("an extension of the ClientHello is cut short")
		}
		if seen[kind] {
			return hello{}, fmt.Errorf("extension %d of the ClientHello comes twice", kind)
		}
		seen[kind] = true
		understood := true
		switch kind {
		case extensionServerName:
			parsed.serverName, understood = parseServerName(body)
		case extensionProtocols:
			parsed.protocols, understood = parseProtocols(body)
		}
		if !understood {
			return hello{}, fmt.Errorf("extension %d of the ClientHello is malformed", kind)
		}
	}
	return parsed, nil
}

// parseServerName reads the one host name.
func parseServerName(body cryptobyte.String) (string, bool) {
	var list, name cryptobyte.String
	var kind uint8
	if !body.ReadUint16LengthPrefixed(&list) || !body.Empty() || !list.ReadUint8(&kind) || kind != nameTypeHost ||
		!list.ReadUint16LengthPrefixed(&name) || !list.Empty() || name.Empty() {
		return "", false
	}
	return string(name), true
}

// parseProtocols reads the protocols that the client offers (ALPN).
func parseProtocols(body cryptobyte.String) ([]string, bool) {
	var list cryptobyte.String
	if !body.ReadUint16LengthPrefixed(&list) || !body.Empty() || list.Empty() {
		return nil, false
	}
	var protocols []string
	for !list.Empty() {
		var protocol cryptobyte.String
		if !list.ReadUint8LengthPrefixed(&protocol) || protocol.Empty() {
			return nil, false
		}
		protocols = append(protocols, string(protocol))
	}
	return protocols, true
}
