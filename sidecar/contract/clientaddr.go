package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

const (
	// MinStartupPacketBytes is the length of the shortest startup packet that wakes a sleeping cluster: a
	// StartupMessage of protocol 3 with the parameter user and a name of one byte. The gateway parses startup packets.
	// The sidecar only sees how many bytes a client sent, and treats every peer that sent at least as many as a client,
	// so it errs on the side of staying awake.
	MinStartupPacketBytes = 4 + 4 + len("user\x00") + len("u\x00") + 1

	// PathClientAddress is where a sidecar receives a [ClientAddress].
	PathClientAddress = "/client-address"
	// ClientAddressVersion is the version of [ClientAddress] that this program writes and reads.
	ClientAddressVersion = 1
	// MaxClientAddressBytes is the maximum size of an encoded [ClientAddress].
	MaxClientAddressBytes = 1 << 10
)

// ErrInvalidClientAddress means that a client address cannot be used.
var ErrInvalidClientAddress = errors.New("unusable client address")

// ClientAddress names the client of a connection that the wake gateway makes to PostgreSQL. It is sent before the first
// byte of that connection.
type ClientAddress struct {
	// Version is ClientAddressVersion; a reader rejects every other.
	Version int `json:"version"`
	// Port is the source port of the connection; its source address is that of the request.
	Port uint16 `json:"port"`
	// Peer is the client for which the gateway connects; for a probe, it is the gateway itself.
	Peer netip.AddrPort `json:"peer"`
	// Probe reports whether the gateway, on behalf of no client, checks whether PostgreSQL accepts sessions.
	Probe bool `json:"probe,omitempty"`
}

// EncodeClientAddress encodes a client address as JSON.
func EncodeClientAddress(a ClientAddress) ([]byte, error) {
	a.Version, a.Peer = ClientAddressVersion, unmapped(a.Peer)
	body, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode client address: %w", err)
	}
	return body, nil
}

// DecodeClientAddress decodes a client address, and ignores fields that a newer program of the same version added. Its
// errors are [ErrInvalidClientAddress].
func DecodeClientAddress(body []byte) (ClientAddress, error) {
	var a ClientAddress
	if len(body) > MaxClientAddressBytes {
		return ClientAddress{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrInvalidClientAddress, len(body),
			MaxClientAddressBytes)
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return ClientAddress{}, fmt.Errorf("%w: %w", ErrInvalidClientAddress, err)
	}
	switch {
	case a.Version != ClientAddressVersion:
		return ClientAddress{}, fmt.Errorf("%w: version %d, want %d", ErrInvalidClientAddress, a.Version,
			ClientAddressVersion)
	case a.Port == 0 || !a.Peer.IsValid():
		return ClientAddress{}, fmt.Errorf("%w: port and peer must be given", ErrInvalidClientAddress)
	}
	a.Peer = unmapped(a.Peer)
	return a, nil
}

// unmapped returns the address in the form that PostgreSQL and the kernel report.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
