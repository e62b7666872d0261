package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
)

// The request for a list of sockets: struct inet_diag_req_v2 (linux/inet_diag.h), and the states of sockets that are
// established or closing (net/tcp_states.h).
const (
	typeSocketsByFamily = 20 // SOCK_DIAG_BY_FAMILY
	lengthRequest       = 56
	offsetProtocol      = 1
	offsetExtensions    = 2
	offsetStates        = 4
	offsetRequestedPort = 8

	stateTimeWait, stateClose, stateListen, stateNewSynReceived = 6, 7, 10, 12
	openStates                                                  = 1<<13 - 2 - 1<<stateTimeWait - 1<<stateClose - 1<<stateListen - 1<<stateNewSynReceived
)

// Open returns the server's TCP sessions whose socket the kernel has not destroyed, including those whose client is
// still logging in and those whose process has ended while its last bytes are in transit.
func (l *Listener) Open() ([]activity.Open, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("list the open sockets: %w", err)
	}
	defer func() { _ = conn.Close() }()
	var open []activity.Open
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		messages, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: typeSocketsByFamily, Flags: netlink.Request | netlink.Dump},
			Data:   listRequest(family, l.port),
		})
		if err != nil {
			return nil, fmt.Errorf("list the open sockets: %w", err)
		}
		for _, message := range messages {
			socket, err := decode(message.Data, time.Time{})
			// The server has closed the session and its client has not: the kernel has destroyed the socket, reported
			// that, and keeps only what the end needs (inet_diag.c, inet_twsk_diag_fill).
			if errors.Is(err, errNoCounters) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list the open sockets: %w", err)
			}
			open = append(open, activity.Open{Peer: socket.Peer, Received: socket.Received})
		}
	}
	return open, nil
}

// listRequest asks for the sockets of one local port, with their counters.
func listRequest(family byte, port uint16) []byte {
	request := make([]byte, lengthRequest)
	request[0], request[offsetProtocol], request[offsetExtensions] = family, unix.IPPROTO_TCP, 1<<(attributeInfo-1)
	binary.NativeEndian.PutUint32(request[offsetStates:], openStates)
	binary.BigEndian.PutUint16(request[offsetRequestedPort:], port)
	return request
}
