// Package porttest reserves TCP ports for tests that hand a port to a program that opens it later, or that closes and
// opens it again.
//
// A free port found by listening on port 0 may be taken as soon as it is closed: the tests of other packages, which run
// concurrently, open many sockets. Even while it is open, a client of theirs may use the same port at another loopback
// address, and then appears in a list of the sockets of that port.
package porttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// lowest and highest are below the ports that the kernel gives to clients, and to listeners that ask for any port; the
// ports above are left to TestAgainstAnAPIServer, whose gateway listens on them.
const lowest, highest = 10_000, 20_999

// Reserve returns a TCP port of the loopback interface on which nobody listens, and which no other test gets before
// this one ends, whatever its process: its UDP port, which nothing else uses, stays open until then.
func Reserve(t testing.TB) uint16 {
	t.Helper()
	var config net.ListenConfig
	for {
		port := uint16(lowest + rand.IntN(highest-lowest+1))
		address := fmt.Sprintf("127.0.0.1:%d", port)
		held, err := config.ListenPacket(t.Context(), "udp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		listener, err := config.Listen(t.Context(), "tcp", address)
		if err == nil {
			err = listener.Close()
		}
		if err == nil {
			t.Cleanup(func() { _ = held.Close() })
			return port
		}
		_ = held.Close()
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// Address is a reserved port with the address of the loopback interface.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(Reserve(t))))
}
