package httpserver

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestDisplaceable_isTheOldestOfTheLargestSource writes each connection as the letter of its source, oldest first; the sources
// P and Q are preferred.
func TestDisplaceable_isTheOldestOfTheLargestSource(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, open string
		newcomer   rune
		want       int // -1: the newcomer
	}{
		{"the source with the most gives way", "abbc", 'd', 1},
		{"also to itself", "abbc", 'b', 1},
		{"of equals the oldest", "bca", 'd', 0},
		{"a preferred source stays although it has the most", "PPPa", 'b', 3},
		{"a preferred newcomer takes from others first", "PPPa", 'Q', 3},
		{"only a preferred newcomer takes from a preferred source", "PQQ", 'P', 1},
		{"anybody else is refused then", "PQQ", 'a', -1},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			conn := func(letter rune) *Conn {
				return &Conn{source: netip.AddrFrom4([4]byte{10, 0, 0, byte(letter)}), preferred: strings.ContainsRune("PQ", letter)}
			}
			var open []*Conn
			for _, letter := range row.open {
				open = append(open, conn(letter))
			}
			newcomer := conn(row.newcomer)
			want := newcomer
			if row.want >= 0 {
				want = open[row.want]
			}
			if got := displaceable(open, newcomer); got != want {
				t.Errorf("%v gives way, want %v", got.source, want.source)
			}
		})
	}
}

// accepted returns the connections accepted by a listener with slots, and a function to connect to it.
func accepted(t *testing.T, most int, preferred func(netip.Addr) bool) (conns <-chan net.Conn, dial func(source string) net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := NewListener(inner, most, preferred)
	taken := make(chan net.Conn, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			taken <- conn
		}
	}()
	t.Cleanup(func() {
		_ = inner.Close()
		<-done
		close(taken)
		for conn := range taken {
			_ = conn.Close()
		}
	})
	return taken, func(source string) net.Conn {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn
	}
}

// ended reads until the connection ends.
func ended(t *testing.T, conn net.Conn) {
	t.Helper()
	var timeout net.Error
	if _, err := io.ReadAll(conn); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the connection goes on")
	}
}

func TestListener_letsAnotherSourceInWhenOneHasAllPlaces(t *testing.T) {
	t.Parallel()
	conns, dial := accepted(t, 2, nil)
	oldest := dial("127.0.0.9")
	<-conns
	dial("127.0.0.9")
	<-conns
	other := dial("127.0.0.1")
	served := <-conns
	ended(t, oldest)
	if _, err := served.Write([]byte("served")); err != nil {
		t.Error(err)
	}
	answer := make([]byte, 6)
	if _, err := io.ReadFull(other, answer); err != nil {
		t.Error(err)
	}
	_ = served.Close()
}

func TestListener_refusesWhileAllPlacesArePreferred(t *testing.T) {
	t.Parallel()
	conns, dial := accepted(t, 1, func(source netip.Addr) bool { return source.String() == "127.0.0.1" })
	dial("127.0.0.1")
	kept := <-conns
	ended(t, dial("127.0.0.9"))
	_ = kept.Close()
	dial("127.0.0.9")
	_ = (<-conns).Close()
}

func TestConn_thatIsKeptTakesNoPlace(t *testing.T) {
	t.Parallel()
	conns, dial := accepted(t, 1, nil)
	first := dial("127.0.0.1")
	kept := <-conns
	kept.(*Conn).Keep()
	ended1 := dial("127.0.0.1")
	<-conns
	dial("127.0.0.1")
	<-conns
	ended(t, ended1)
	if _, err := kept.Write([]byte("served")); err != nil {
		t.Error(err)
	}
	answer := make([]byte, 6)
	if _, err := io.ReadFull(first, answer); err != nil {
		t.Error(err)
	}
	_ = kept.Close()
}
