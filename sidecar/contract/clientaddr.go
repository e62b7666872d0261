package contract

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

const (
	// ShortestStartupPacket is the length, in bytes, of the shortest startup packet that wakes a sleeping cluster: a StartupMessage of
	// protocol 3 with the parameter user and a name of one byte. The gateway parses startup packets; the sidecar sees only how many
	// bytes a client sent, and takes whoever sent as many for a client, so that it errs only towards awake.
	ShortestStartupPacket = 4 + 4 + len("user\x00") + len("u\x00") + 1

	// PathClientAddress is where a sidecar takes a [ClientAddress] in.
	PathClientAddress = "/client-address"
	// ClientAddressVersion is the version of [ClientAddress] that this program writes and reads.
	ClientAddressVersion = 1
	// MaximumClientAddress bounds a [ClientAddress] in bytes.
	MaximumClientAddress = 1 << 10
)

// ErrClientAddress says that a client address cannot be used.
var ErrClientAddress = errors.New("unusable client address")

// ClientAddress is what the wake gateway sends to a sidecar about a connection that it makes to PostgreSQL: whose it is. It is
// sent before the first byte of the connection.
type ClientAddress struct {
	// Version is ClientAddressVersion; a reader refuses every other.
	Version int `json:"version"`
	// Port is the gateway's port from which the connection comes; its address is that of the request.
	Port uint16 `json:"port"`
	// Peer is the client that the gateway speaks for; of a probe it is the gateway itself.
	Peer netip.AddrPort `json:"peer"`
	// Probe says that the gateway only asks whether PostgreSQL accepts sessions, for no client.
	Probe bool `json:"probe,omitempty"`
}

// EncodeClientAddress writes a client address as JSON.
func EncodeClientAddress(a ClientAddress) ([]byte, error) {
	a.Version, a.Peer = ClientAddressVersion, unmapped(a.Peer)
	body, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode client address: %w", err)
	}
	return body, nil
}

// DecodeClientAddress reads a client address; fields that a newer program of the same version added are passed over. Errors
// are [ErrClientAddress].
func DecodeClientAddress(body []byte) (ClientAddress, error) {
	var a ClientAddress
	if len(body) > MaximumClientAddress {
		return ClientAddress{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrClientAddress, len(body), MaximumClientAddress)
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return ClientAddress{}, fmt.Errorf("%w: %w", ErrClientAddress, err)
	}
	switch {
	case a.Version != ClientAddressVersion:
		return ClientAddress{}, fmt.Errorf("%w: version %d, want %d", ErrClientAddress, a.Version, ClientAddressVersion)
	case a.Port == 0 || !a.Peer.IsValid():
		return ClientAddress{}, fmt.Errorf("%w: port and peer must be given", ErrClientAddress)
	}
	a.Peer = unmapped(a.Peer)
	return a, nil
}

// unmapped is the address in the form in which PostgreSQL and the kernel report it.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
