package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

func TestWhatAHeldClientSendsAheadIsTheServers(t *testing.T) {
	t.Parallel()
	woken := make(chan struct{})
	target := instance(t, trusting(echo))
	backend := &fakeBackend{resolve: func(context.Context, Client) (netip.AddrPort, error) { <-woken; return target, nil }}
	gateway := run(t, backend, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	gateway.ledger.await(t, "held", 1)
	send(t, conn, []byte("ahead of its turn"))
	close(woken)
	expect(t, conn, append(append([]byte{}, okay...), "ahead of its turn"...))
}

func TestAHeldClientThatSendsTooMuchIsRefused(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeBackend{}, func(l *Limits) { l.StartupBytes = 100 })
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	gateway.ledger.await(t, "held", 1)
	send(t, conn, make([]byte, 101))
	expectEnd(t, conn)
	gateway.ledger.await(t, "refused sent_ahead", 1)
}

func TestAClientThatHangsUpLeavesNoSessionBehind(t *testing.T) {
	t.Parallel()
	asked, ended := make(chan struct{}), make(chan error, 1)
	gateway := run(t, &fakeBackend{resolve: to(instance(t, func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, len(startupPacket)))
		close(asked)
		_, err := conn.Read(make([]byte, 1)) // it never answers
		ended <- err
	}))}, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	<-asked
	must(t, conn.Close())
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("the instance read %v", err)
	}
	gateway.ledger.await(t, "refused hung_up", 1)
}

// TestEndsPassThrough checks that each side learns how the other ended.
func TestEndsPassThrough(t *testing.T) {
	t.Parallel()
	fate := make(chan error, 1)
	session := func(t *testing.T, then func(*net.TCPConn)) (running, *net.TCPConn) {
		gateway := run(t, &fakeBackend{resolve: to(instance(t, trusting(then)))}, nil)
		conn := dial(t, gateway.address)
		send(t, conn, startupPacket)
		expect(t, conn, okay)
		gateway.ledger.await(t, "spliced", 1)
		return gateway, conn
	}
	t.Run("the client's half-close leaves the other direction open", func(t *testing.T) {
		_, conn := session(t, func(conn *net.TCPConn) {
			got, _ := io.ReadAll(conn)
			_, _ = conn.Write(append([]byte("got "), got...))
		})
		send(t, conn, []byte("all"))
		must(t, conn.CloseWrite())
		if said := expectEnd(t, conn); said != "got all" {
			t.Errorf("read %q", said)
		}
	})
	t.Run("the server's half-close leaves the other direction open", func(t *testing.T) {
		got := make(chan string, 1)
		_, conn := session(t, func(conn *net.TCPConn) {
			_ = conn.CloseWrite()
			all, _ := io.ReadAll(conn)
			got <- string(all)
		})
		if said := expectEnd(t, conn); said != "" {
			t.Errorf("read %q", said)
		}
		send(t, conn, []byte("more"))
		must(t, conn.CloseWrite())
		if all := <-got; all != "more" {
			t.Errorf("the server read %q", all)
		}
	})
	t.Run("the client's reset reaches the server", func(t *testing.T) {
		gateway, conn := session(t, func(conn *net.TCPConn) {
			_, err := conn.Read(make([]byte, 1))
			fate <- err
		})
		must(t, conn.SetLinger(0))
		must(t, conn.Close())
		if err := <-fate; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server read %v", err)
		}
		gateway.ledger.await(t, "spliced", 0)
	})
	t.Run("the server's reset reaches the client behind its last words", func(t *testing.T) {
		gateway, conn := session(t, func(conn *net.TCPConn) {
			_, _ = conn.Read(make([]byte, 1))
			_, _ = conn.Write([]byte("last words"))
			_ = conn.SetLinger(0)
		})
		send(t, conn, []byte("?"))
		got, err := io.ReadAll(conn)
		if string(got) != "last words" || !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the client read %q and %v", got, err)
		}
		gateway.ledger.await(t, "spliced", 0)
	})
}

// TestACancelRequestIsPassedToEveryInstance checks that the client's connection ends once all instances have processed the
// request.
func TestACancelRequestIsPassedToEveryInstance(t *testing.T) {
	t.Parallel()
	got := make(chan string, 2)
	take := func(conn *net.TCPConn) {
		packet := make([]byte, len(cancelPacket))
		_, _ = io.ReadFull(conn, packet)
		got <- string(packet)
	}
	backend := &fakeBackend{running: []netip.AddrPort{instance(t, take), nobody, instance(t, take)}}
	gateway := run(t, backend, nil)
	conn := dial(t, gateway.address)
	send(t, conn, cancelPacket)
	if said := expectEnd(t, conn); said != "" {
		t.Errorf("it was told %q", said)
	}
	for range 2 {
		select {
		case packet := <-got:
			if packet != string(cancelPacket) {
				t.Errorf("an instance got %q", packet)
			}
		default:
			t.Fatal("the client's connection ended before an instance had the request")
		}
	}
}

// pairs makes connections on both sides of a splice.
func pairs(t *testing.T) func() (near, far *net.TCPConn) {
	listener := listen(t)
	t.Cleanup(func() { _ = listener.Close() })
	return func() (near, far *net.TCPConn) {
		far = dial(t, listener.Addr().String())
		conn, err := listener.Accept()
		must(t, err)
		return conn.(*net.TCPConn), far
	}
}

// TestTheServersLastWordsOutliveItsReset tests this for a client that was sending meanwhile: the write fails first.
func TestTheServersLastWordsOutliveItsReset(t *testing.T) {
	t.Parallel()
	pair := pairs(t)
	for range 100 {
		client, outside := pair()
		server, backend := pair()
		send(t, backend, []byte("last words"))
		must(t, backend.SetLinger(0))
		must(t, backend.Close())
		send(t, outside, []byte("a query"))
		splice(t.Context(), time.Minute, client, server, func() {})
		if got, err := io.ReadAll(outside); string(got) != "last words" || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the client read %q and %v", got, err)
		}
	}
}

func TestAClientThatDoesNotNoticeTheEndIsLetGo(t *testing.T) {
	t.Parallel()
	pair := pairs(t)
	client, outside := pair()
	server, backend := pair()
	must(t, backend.CloseWrite())
	splice(t.Context(), time.Millisecond, client, server, func() {})
	expectEnd(t, outside)
	expectEnd(t, backend)
}
