package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

func TestWhatAHeldClientSendsAheadIsTheServers(t *testing.T) {
	t.Parallel()
	woken := make(chan struct{})
	target := instance(t, trusting(echo))
	director := &fakeDirector{resolve: func(context.Context, Client) (netip.AddrPort, error) { <-woken; return target, nil }}
	gateway := run(t, director, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	gateway.ledger.await(t, "held", 1)
	send(t, conn, []byte("ahead of its turn"))
	close(woken)
	expect(t, conn, append(append([]byte{}, okay...), "ahead of its turn"...))
}

func TestAHeldClientThatSendsTooMuchIsRefused(t *testing.T) {
	t.Parallel()
	gateway := run(t, &fakeDirector{}, func(l *Limits) { l.OpeningBytes = 100 })
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	gateway.ledger.await(t, "held", 1)
	send(t, conn, make([]byte, 101))
	expectEnd(t, conn)
	gateway.ledger.await(t, "refused sent_ahead", 1)
}

// TestAnInstanceThatDoesNotAcceptIsTriedAgain holds what an instance may do before it takes a session.
func TestAnInstanceThatDoesNotAcceptIsTriedAgain(t *testing.T) {
	t.Parallel()
	starting, err := startup.Refuse(startup.CannotConnectNow, "the database system is starting up")
	must(t, err)
	for rule, first := range map[string]func(*net.TCPConn){
		"it says that it starts":     trusting(func(*net.TCPConn) {}),
		"it hangs up without a word": func(*net.TCPConn) {},
		"it resets without a word":   func(conn *net.TCPConn) { _ = conn.SetLinger(0) },
		"it says so byte by byte":    nil,
		"it stops after half a header": func(conn *net.TCPConn) {
			_, _ = io.ReadFull(conn, make([]byte, 18))
			_, _ = conn.Write([]byte("E\x00"))
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			says := func(conn *net.TCPConn, step int) {
				_, _ = io.ReadFull(conn, make([]byte, len(startupPacket)))
				for rest := starting; len(rest) > 0; rest = rest[min(step, len(rest)):] {
					_, _ = conn.Write(rest[:min(step, len(rest))])
				}
			}
			var came atomic.Int64
			target := instance(t, func(conn *net.TCPConn) {
				switch {
				case came.Add(1) > 1:
					trusting(echo)(conn)
				case first == nil:
					says(conn, 1)
				case rule == "it says that it starts":
					says(conn, len(starting))
				default:
					first(conn)
				}
			})
			director := &fakeDirector{resolve: to(target)}
			gateway := run(t, director, nil)
			conn := dial(t, gateway.address)
			send(t, conn, startupPacket)
			expect(t, conn, okay)
			if asked := director.resolved.Load(); asked != 2 {
				t.Errorf("Resolve was asked %d times", asked)
			}
		})
	}
}

// TestTheAnswerOfAnInstanceIsPassedOn holds that every other first answer is the client's.
func TestTheAnswerOfAnInstanceIsPassedOn(t *testing.T) {
	t.Parallel()
	full, err := startup.Refuse(startup.TooManyConnections, "sorry, too many clients already")
	must(t, err)
	for rule, answer := range map[string]string{
		"an error of another class":             string(full),
		"an error of a server that cannot fork": "Ecould not fork new process\n\x00",
		"an error that is malformed":            "E\x00\x00\x00\x05?",
		"an error with an impossible length":    "E\x00\x00\x00\x00",
		"a request for a password":              "R\x00\x00\x00\x08\x00\x00\x00\x03",
		"an older protocol":                     "v\x00\x00\x00\x0c\x00\x03\x00\x00\x00\x00\x00\x00",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			gateway := run(t, &fakeDirector{resolve: to(instance(t, func(conn *net.TCPConn) {
				_, _ = io.ReadFull(conn, make([]byte, len(startupPacket)))
				_, _ = conn.Write([]byte(answer))
			}))}, nil)
			conn := dial(t, gateway.address)
			send(t, conn, startupPacket)
			if said := expectEnd(t, conn); said != answer {
				t.Errorf("it was told %q, want %q", said, answer)
			}
		})
	}
}

func TestReplicationPassesToAnInstanceThatRuns(t *testing.T) {
	t.Parallel()
	director := &fakeDirector{running: []netip.AddrPort{instance(t, func(conn *net.TCPConn) { _, _ = conn.Write(okay); echo(conn) })}}
	gateway := run(t, director, nil)
	conn := dial(t, gateway.address)
	send(t, conn, replicationPacket)
	expect(t, conn, append(append([]byte{}, okay...), replicationPacket...))
	if director.resolved.Load() != 0 {
		t.Error("Resolve was asked")
	}
}

func TestTheInstanceLearnsWhoseTheSessionIs(t *testing.T) {
	t.Parallel()
	asked := make(chan netip.AddrPort, 1)
	target := instance(t, trusting(func(conn *net.TCPConn) { asked <- addrPort(conn.RemoteAddr()); echo(conn) }))
	seen := make(chan Client, 1)
	director := &fakeDirector{resolve: func(_ context.Context, client Client) (netip.AddrPort, error) {
		seen <- client
		return target, nil
	}}
	gateway := run(t, director, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)
	director.mutex.Lock()
	defer director.mutex.Unlock()
	peer := addrPort(conn.LocalAddr())
	if got := director.introduced[<-asked]; got != peer {
		t.Errorf("introduced %v, want %v", got, peer)
	}
	if got, want := <-seen, (Client{Peer: peer, User: "ann", Database: "ann"}); got != want {
		t.Errorf("resolved for %+v, want %+v", got, want)
	}
}

// TestEndsPassThrough holds that each side learns how the other ended.
func TestEndsPassThrough(t *testing.T) {
	t.Parallel()
	fate := make(chan error, 1)
	session := func(t *testing.T, then func(*net.TCPConn)) (running, *net.TCPConn) {
		gateway := run(t, &fakeDirector{resolve: to(instance(t, trusting(then)))}, nil)
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

// TestACancelRequestIsPassedToEveryInstance holds that the client's connection ends when all have taken it.
func TestACancelRequestIsPassedToEveryInstance(t *testing.T) {
	t.Parallel()
	got := make(chan string, 2)
	take := func(conn *net.TCPConn) {
		packet := make([]byte, len(cancelPacket))
		_, _ = io.ReadFull(conn, packet)
		got <- string(packet)
	}
	nobody := netip.MustParseAddrPort("127.0.0.1:1")
	director := &fakeDirector{running: []netip.AddrPort{instance(t, take), nobody, instance(t, take)}}
	gateway := run(t, director, nil)
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
