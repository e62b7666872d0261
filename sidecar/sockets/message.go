// Package sockets reports which TCP sessions of a server have ended. To members of the destroy groups of
// NETLINK_SOCK_DIAG, the kernel reports every TCP socket that it destroys in the network namespace, with its counters.
// This needs no privileges (seen in a pod with uid 26, no capabilities and seccomp RuntimeDefault, kernel 6.18).
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// The layout of struct inet_diag_msg (linux/inet_diag.h) and of struct tcp_info (linux/tcp.h), in bytes.
const (
	offsetFamily          = 0
	offsetSourcePort      = 4
	offsetDestinationPort = 6
	offsetSource          = 8
	offsetDestination     = 24
	lengthMessage         = 72
	offsetBytesReceived   = 128
	lengthCounters        = 136

	// attributeInfo is INET_DIAG_INFO, which carries struct tcp_info.
	attributeInfo = 2
)

// errMessage means that the kernel's message could not be decoded, errNoCounters that it lacks the counters.
var (
	errMessage    = errors.New("invalid message of the kernel")
	errNoCounters = fmt.Errorf("%w: it has no counters", errMessage)
)

// decodeAll decodes a datagram of the kernel, with its netlink headers.
func decodeAll(datagram []byte, at time.Time) ([]activity.Ended, error) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMessage, err)
	}
	reports := make([]activity.Ended, 0, len(messages))
	for _, message := range messages {
		ended, err := decode(message.Data, at)
		if err != nil {
			return reports, err
		}
		reports = append(reports, ended)
	}
	return reports, nil
}

// decode decodes one message of the kernel. The caller must assume the worst of a message that cannot be decoded.
func decode(data []byte, at time.Time) (activity.Ended, error) {
	if len(data) < lengthMessage {
		return activity.Ended{}, fmt.Errorf("%w: %d bytes", errMessage, len(data))
	}
	var address netip.Addr
	switch raw := data[offsetDestination:]; data[offsetFamily] {
	case unix.AF_INET:
		address = netip.AddrFrom4([4]byte(raw))
	case unix.AF_INET6:
		address = netip.AddrFrom16([16]byte(raw)).Unmap()
	default:
		return activity.Ended{}, fmt.Errorf("%w: family %d", errMessage, data[offsetFamily])
	}
	ended := activity.Ended{
		Peer: netip.AddrPortFrom(address, binary.BigEndian.Uint16(data[offsetDestinationPort:])), At: at,
	}
	attributes, err := netlink.NewAttributeDecoder(data[lengthMessage:])
	if err != nil {
		return activity.Ended{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	for attributes.Next() {
		if info := attributes.Bytes(); attributes.Type() == attributeInfo && len(info) >= lengthCounters {
			ended.Received = binary.NativeEndian.Uint64(info[offsetBytesReceived:])
			return ended, nil
		}
	}
	return activity.Ended{}, errNoCounters
}
