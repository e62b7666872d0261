package porttest

import (
	"fmt"
	"net"
	"testing"
)

func TestReserve_givesAPortToOneTestAtATime(t *testing.T) {
	t.Parallel()
	var port uint16
	t.Run("a test", func(t *testing.T) {
		port = Reserve(t)
		if other, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = other.Close()
			t.Error("another test could reserve it too")
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
	})
	if port < lowest || port > highest {
		t.Errorf("port %d", port)
	}
}
