package gateway

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// TestAnInstanceThatDoesNotAcceptIsTriedAgain checks what an instance may do before it accepts a session.
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
			backend := &fakeBackend{resolve: to(target)}
			gateway := run(t, backend, nil)
			conn := dial(t, gateway.address)
			send(t, conn, startupPacket)
			expect(t, conn, okay)
			if asked := backend.resolved.Load(); asked != 2 {
				t.Errorf("Resolve was asked %d times", asked)
			}
		})
	}
}

// TestGateway_beginsNoSessionWhileEveryClientIsHeld checks that an instance gets no byte of a client that is held after all, and that the
// client takes no slot of a session meanwhile.
func TestGateway_beginsNoSessionWhileEveryClientIsHeld(t *testing.T) {
	t.Parallel()
	var asked, sessions atomic.Int64
	target := instance(t, func(conn *net.TCPConn) {
		if _, err := io.ReadFull(conn, make([]byte, len(startupPacket))); err != nil {
			return
		}
		sessions.Add(1)
		_, _ = conn.Write(okay)
	})
	var serving atomic.Pointer[Gateway]
	resolve := func(context.Context, Client) (netip.AddrPort, error) {
		if taken := serving.Load().spliced.count(); taken != 0 {
			t.Errorf("a client without a session has %d slots", taken)
		}
		return target, nil
	}
	backend := &fakeBackend{resolve: resolve, running: []netip.AddrPort{target}, begins: func() bool { return asked.Add(1) > 1 }}
	gateway := run(t, backend, nil)
	serving.Store(gateway.Gateway)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)
	if asked.Load() != 2 || sessions.Load() != 1 || backend.resolved.Load() != 2 {
		t.Errorf("asked %d times, resolved %d times, %d sessions", asked.Load(), backend.resolved.Load(), sessions.Load())
	}
	asked.Store(0)
	replica := dial(t, gateway.address)
	send(t, replica, replicationPacket)
	if said := expectEnd(t, replica); said != refusedWith(t, errHolds) || sessions.Load() != 1 {
		t.Errorf("a replication client, which cannot wait for a wake, was told %q; %d sessions", said, sessions.Load())
	}
}

// TestTheAnswerOfAnInstanceIsPassedOn checks that every other first answer is forwarded to the client.
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
			gateway := run(t, &fakeBackend{resolve: to(instance(t, func(conn *net.TCPConn) {
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
	backend := &fakeBackend{running: []netip.AddrPort{instance(t, func(conn *net.TCPConn) { _, _ = conn.Write(okay); echo(conn) })}}
	gateway := run(t, backend, nil)
	conn := dial(t, gateway.address)
	send(t, conn, replicationPacket)
	expect(t, conn, append(append([]byte{}, okay...), replicationPacket...))
	if backend.resolved.Load() != 0 {
		t.Error("Resolve was asked")
	}
}

// While a cluster falls asleep or wakes, its Services lead to the gateway although it is awake.
func TestGateway_whoWakesNothingReachesAClusterThatIsAwake(t *testing.T) {
	t.Parallel()
	target := instance(t, trusting(echo))
	for _, row := range []struct {
		rule    string
		running []netip.AddrPort
		refusal Refusal
		served  bool
	}{
		{"an ignored client is served while an instance runs", []netip.AddrPort{target}, RefusalIgnored, true},
		{"an ignored client is not served by a sleeping cluster", nil, RefusalIgnored, false},
		{"an instance of the cluster is served while one runs", []netip.AddrPort{target}, RefusalInstance, true},
		{"an instance of the cluster does not wake it", nil, RefusalInstance, false},
		{"a client of a network that is not served never is", []netip.AddrPort{target}, RefusalNotAllowed, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			backend := &fakeBackend{running: row.running, refuses: func(netip.AddrPort) Refusal { return row.refusal }}
			gateway := run(t, backend, nil)
			conn := dial(t, gateway.address)
			if row.served {
				send(t, conn, startupPacket)
				expect(t, conn, okay)
			} else if said := expectEnd(t, conn); said != "" {
				t.Errorf("it was told %q", said)
			}
			if backend.resolved.Load() != 0 {
				t.Error("Resolve was asked, which wakes the cluster")
			}
		})
	}
}

// While the informers may be stale, Running asks the API server, which may take seconds.
func TestGateway_aClientThatWakesNothingHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	looks := make(chan struct{})
	backend := &fakeBackend{
		resolve: to(instance(t, trusting(echo))), looks: looks,
		refuses: func(peer netip.AddrPort) Refusal {
			if peer.Addr().String() == "127.0.0.9" {
				return RefusalIgnored
			}
			return ""
		},
	}
	gateway := run(t, backend, nil)
	ignored := dialFrom(t, "127.0.0.9", gateway.address)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)
	close(looks)
	expectEnd(t, ignored)
}

func TestReplicationKeepsToRulesThatTellAddressesApart(t *testing.T) {
	t.Parallel()
	instance := instance(t, func(*net.TCPConn) { t.Error("a session came from the gateway's address") })
	gateway := run(t, &fakeBackend{running: []netip.AddrPort{instance}, away: true}, nil)
	conn := dial(t, gateway.address)
	send(t, conn, replicationPacket)
	if said := expectEnd(t, conn); said != refusedWith(t, ErrReconnect) {
		t.Errorf("it was told %q", said)
	}
}

// MustReconnect may take a while, during which the instance may begin to stop.
func TestReplicationKeepsFromAnInstanceThatIsAboutToStop(t *testing.T) {
	t.Parallel()
	backend := &fakeBackend{running: []netip.AddrPort{instance(t, func(*net.TCPConn) { t.Error("a session was passed on") })}}
	backend.asked = func() { backend.running = nil }
	gateway := run(t, backend, nil)
	conn := dial(t, gateway.address)
	send(t, conn, replicationPacket)
	if said := expectEnd(t, conn); said != refusedWith(t, errReplication) {
		t.Errorf("it was told %q", said)
	}
}

func TestTheInstanceLearnsWhoseTheSessionIs(t *testing.T) {
	t.Parallel()
	asked := make(chan netip.AddrPort, 1)
	target := instance(t, trusting(func(conn *net.TCPConn) { asked <- addrPort(conn.RemoteAddr()); echo(conn) }))
	seen := make(chan Client, 1)
	backend := &fakeBackend{resolve: func(_ context.Context, client Client) (netip.AddrPort, error) {
		seen <- client
		return target, nil
	}}
	gateway := run(t, backend, nil)
	conn := dial(t, gateway.address)
	send(t, conn, startupPacket)
	expect(t, conn, okay)
	backend.mutex.Lock()
	defer backend.mutex.Unlock()
	peer := addrPort(conn.LocalAddr())
	if got := backend.addresses[<-asked]; got != peer {
		t.Errorf("sent %v, want %v", got, peer)
	}
	if got, want := <-seen, (Client{Peer: peer, User: "ann", Database: "ann"}); got != want {
		t.Errorf("resolved for %+v, want %+v", got, want)
	}
}

// clientHello was sent by pgx after SSLRequest.
func clientHello(t *testing.T) []byte {
	t.Helper()
	content, err := os.ReadFile("../startup/testdata/pgx-require.txt")
	must(t, err)
	_, line, _ := strings.Cut(string(content), "server S\nclient ")
	line, _, _ = strings.Cut(line, "\n")
	hello, err := hex.DecodeString(line)
	must(t, err)
	return hello
}

// TestATLSClientHearsNothingButItsServer checks what a client that was promised TLS reads.
func TestATLSClientHearsNothingButItsServer(t *testing.T) {
	t.Parallel()
	hello := clientHello(t)
	for _, row := range []struct {
		rule   string
		answer string
		counts string
		hears  string
	}{
		{"an instance with TLS gets SSLRequest, and the ClientHello when it has answered", "S", "took connect", "server hello"},
		{"an instance without TLS ends the session", "N", "refused no_tls", ""},
		{"an instance that answers an error ends the session", "E", "refused no_tls", ""},
		{"an instance that never answers is given up", "", "refused unreachable", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			gateway := run(t, &fakeBackend{resolve: to(instance(t, func(conn *net.TCPConn) {
				got := make([]byte, len(startup.SSLRequest))
				if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, startup.SSLRequest) {
					t.Errorf("the instance read %x and %v", got, err)
				}
				_, _ = conn.Write([]byte(row.answer))
				if row.answer != "S" {
					return
				}
				got = make([]byte, len(hello))
				if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, hello) {
					t.Errorf("the instance read %x and %v", got, err)
				}
				_, _ = conn.Write([]byte("server hello"))
			}))}, nil)
			conn := dial(t, gateway.address)
			send(t, conn, startup.SSLRequest)
			expect(t, conn, []byte("S"))
			send(t, conn, hello)
			if heard := expectEnd(t, conn); heard != row.hears {
				t.Errorf("the client read %q", heard)
			}
			gateway.ledger.await(t, row.counts, 1)
		})
	}
}

// FuzzFirstAnswer checks that no answer of an instance makes the gateway panic or keep much, and that answers are forwarded
// unchanged.
func FuzzFirstAnswer(f *testing.F) {
	starting, err := startup.Refuse(startup.CannotConnectNow, "starting")
	must(f, err)
	for _, seed := range [][]byte{starting, okay, []byte("E\x00\x00\x00\x00"), []byte("E\xff\xff\xff\xff"), []byte("E")} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, said []byte, slowly bool) {
		var from io.Reader = bytes.NewReader(said)
		if slowly {
			from = iotest.OneByteReader(from)
		}
		answer, err := firstAnswer(from)
		if err != nil && !errors.Is(err, errUnreachable) {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(said, answer) || cap(answer) > answerMost {
			t.Fatalf("passes on %q of %q", answer, said)
		}
	})
}
