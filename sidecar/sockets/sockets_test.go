package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sql/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message is what the kernel sends for a socket that ended, as the filter sees it: with the netlink header.
func message(family byte, port uint16, peer [16]byte, peerPort uint16, sent uint64) []byte {
	m := make([]byte, atInfo+4+lengthCounters)
	m[atMessage] = family
	binary.BigEndian.PutUint16(m[atMessage+offsetSourcePort:], port)
	binary.BigEndian.PutUint16(m[atMessage+offsetDestinationPort:], peerPort)
	copy(m[atMessage+offsetDestination:], peer[:])
	binary.NativeEndian.PutUint16(m[atAttributes:], 5)
	binary.NativeEndian.PutUint16(m[atAttributes+2:], 10) // INET_DIAG_PROTOCOL
	binary.NativeEndian.PutUint16(m[atInfo:], 4+lengthCounters)
	binary.NativeEndian.PutUint16(m[atInfo+2:], attributeInfo)
	binary.NativeEndian.PutUint64(m[atAcked:], sent)
	binary.NativeEndian.PutUint64(m[atInfo+4+offsetBytesReceived:], 77)
	return m
}

func TestFilter(t *testing.T) {
	t.Parallel()
	raw, err := filter(5432)
	if err != nil {
		t.Fatal(err)
	}
	program, decoded := bpf.Disassemble(raw)
	if !decoded {
		t.Fatal("the filter cannot be read back")
	}
	machine, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	other := message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 1)
	binary.NativeEndian.PutUint16(other[atInfo+2:], 9)
	for _, row := range []struct {
		rule    string
		message []byte
		passes  bool
	}{
		{"a login passes", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 416), true},
		{"a login over IPv6 passes", message(unix.AF_INET6, 5432, [16]byte{0xfd, 15: 1}, 1, 416), true},
		{"another port does not", message(unix.AF_INET, 5433, [16]byte{10, 0, 0, 1}, 1, 416), false},
		{"the source port is not mistaken for the other one", message(unix.AF_INET, 1, [16]byte{10, 0, 0, 1}, 5432, 416), false},
		{"a bare connect does not", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 1), false},
		{"nor over IPv6", message(unix.AF_INET6, 5432, [16]byte{0xfd, 15: 1}, 1, 1), false},
		{"a wrong password does not", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 275), false},
		{"the shortest of logins passes", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, activity.ShortestLogin), true},
		{"one byte less does not", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, activity.ShortestLogin-1), false},
		{"64 KiB pass", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 1<<16), true},
		{"4 GiB pass", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 1<<32), true},
		{"256 TiB pass", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 1<<48), true},
		{"our own test passes", message(unix.AF_INET, 5432, [16]byte{127, 0, 0, 1}, 1, 1), true},
		{"an IPv6 address that begins like it does not", message(unix.AF_INET6, 5432, [16]byte{127, 0, 0, 1}, 1, 1), false},
		{"a message of another layout passes", other, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			length, err := machine.Run(row.message)
			if err != nil || length != 0 != row.passes {
				t.Errorf("passes: %t (%v), want %t", length != 0, err, row.passes)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, raw := range map[string][]byte{
		"10.0.0.1:4711":  message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 4711, 416),
		"[fd00::1]:4711": message(unix.AF_INET6, 5432, [16]byte{0xfd, 15: 1}, 4711, 416),
		"10.0.0.2:4711":  message(unix.AF_INET6, 5432, [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2}, 4711, 416),
	} {
		got, err := decode(raw[atMessage:], now)
		if err != nil || got.Peer.String() != want || got.Sent != 416 || got.Received != 77 || !got.At.Equal(now) {
			t.Errorf("got %+v (%v), want %s", got, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 4711, 416)[atMessage:])
	f.Add(message(unix.AF_INET6, 5432, [16]byte{0xfd, 15: 1}, 4711, 1)[atMessage:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, err := decode(raw, time.Now()); err == nil && !got.Peer.IsValid() {
			t.Error("a report without a peer")
		} else if err != nil && !errors.Is(err, errMessage) {
			t.Errorf("the error is not classified: %v", err)
		}
	})
}

// expect waits for the report of one client.
func expect(t *testing.T, l *Listener, peer string) activity.Ended {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		reports, err := l.Receive(deadline)
		if err != nil {
			t.Fatal(err)
		}
		for _, report := range reports {
			if report.Peer.String() == peer {
				return report
			}
		}
		if !time.Now().Before(deadline) {
			t.Fatalf("the end of %s is not reported", peer)
		}
	}
}

// Every way to come and go, on a real server, without TLS and with it, and what it is judged as.
func TestVerdictsOnARealServer(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		s.EnableTLS(t)
		s.Execute(t, "create role app login password 'right'", "create database app owner app")
		listener, err := Listen(s.Port)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		_, handshake, err := listener.Prove(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("a handshake takes %d to %d bytes", handshake.Shortest, handshake.Longest)
		around := activity.Surroundings{Handshake: handshake}
		login := func(password, database, mode string, statements int) func(context.Context) string {
			return func(ctx context.Context) string {
				config, err := pgx.ParseConfig(fmt.Sprintf("postgres://app:%s@127.0.0.1:%d/%s?sslmode=%s", password, s.Port, database, mode))
				if err != nil {
					t.Fatal(err)
				}
				var local string
				config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					var dialer net.Dialer
					conn, err := dialer.DialContext(ctx, network, address)
					if err == nil {
						local = conn.LocalAddr().String()
					}
					return conn, err
				}
				conn, err := pgx.ConnectConfig(ctx, config)
				if err == nil {
					for range statements {
						if _, err := conn.Exec(ctx, "select 1"); err != nil {
							t.Fatal(err)
						}
					}
					_ = conn.Close(ctx)
				}
				return local
			}
		}
		for _, row := range []struct {
			rule string
			come func(context.Context) string
			want activity.Verdict
		}{
			{"a bare connect", func(ctx context.Context) string {
				local, err := listener.connect(ctx, func(context.Context, net.Conn) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				return local.String()
			}, activity.VerdictNoLogin},
			{"a wrong password", login("wrong", "app", "disable", 0), activity.VerdictNoLogin},
			{"a missing database", login("right", strings.Repeat("x", 63), "disable", 0), activity.VerdictNoLogin},
			{"a login", login("right", "app", "disable", 0), activity.VerdictUnseen},
			{"a login with a statement", login("right", "app", "disable", 1), activity.VerdictUnseen},
			{"a wrong password over TLS", login("wrong", "app", "require", 0), activity.VerdictUncertain},
			{"a missing database over TLS", login("right", "missing", "require", 0), activity.VerdictUncertain},
			{"a login over TLS", login("right", "app", "require", 0), activity.VerdictUnseen},
			{"a login with a statement over TLS", login("right", "app", "require", 1), activity.VerdictUnseen},
		} {
			t.Run(row.rule, func(t *testing.T) {
				report := expect(t, listener, row.come(t.Context()))
				if got := activity.Judge(report, around); got != row.want {
					t.Errorf("%+v is judged %s, want %s", report, got, row.want)
				} else {
					t.Logf("%d sent, %d received", report.Sent, report.Received)
				}
			})
		}
		if strings.Contains(s.Log(), "reset by peer") {
			t.Error("the measuring of handshakes leaves lines in the log")
		}
	})
}

// A server is reported whatever family its clients have, also one that has a socket for both, to which IPv4 comes as IPv6.
func TestBothFamiliesAreReported(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, listen, from string }{
		{"IPv4", "127.0.0.1", "127.0.0.1"},
		{"IPv6", "::1", "::1"},
		{"IPv6 on a socket for both", "", "::1"},
		{"IPv4 on a socket for both", "", "127.0.0.1"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server, err := net.Listen("tcp", net.JoinHostPort(row.listen, "0"))
			if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
				t.Skipf("this machine has no IPv6: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			go func() {
				conn, err := server.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write(make([]byte, 500))
				_, _ = io.Copy(io.Discard, conn) // the client says that it has gone when it has read everything
				_ = conn.Close()
			}()
			port := server.Addr().(*net.TCPAddr).AddrPort().Port()
			listener, err := Listen(port)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			conn, err := net.Dial("tcp", net.JoinHostPort(row.from, strconv.Itoa(int(port))))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 500)); err != nil {
				t.Fatal(err)
			}
			peer := conn.LocalAddr().String()
			_ = conn.Close()
			if report := expect(t, listener, peer); report.Sent < 500 || activity.Judge(report, activity.Surroundings{}) != activity.VerdictUnseen {
				t.Errorf("reported is %+v", report)
			}
		})
	}
}

func TestSilenceOfTheKernelIsNoticed(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }() // nobody accepts: the server's end of the connection does not end
	l, err := Listen(uint16(server.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, _, err := l.Prove(t.Context(), false); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v, want ErrUnsupported", err)
	}
}

// A reader that is slower than the reports is told that some are lost.
func TestLostReports(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	l, err := Listen(uint16(server.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.conn.SetReadBuffer(4096); err != nil { // a handful of reports
		t.Fatal(err)
	}
	for range 2000 {
		client, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		_ = accepted.Close()
	}
	arrived := 0
	for {
		reports, err := l.Receive(time.Now().Add(time.Second))
		if errors.Is(err, ErrLost) {
			return
		}
		if err != nil || len(reports) == 0 {
			t.Fatalf("%d reports arrived and none was lost (%v)", arrived, err)
		}
		arrived += len(reports)
	}
}

func TestCloseEndsReceive(t *testing.T) {
	t.Parallel()
	l, err := Listen(1)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Receive(time.Time{})
		ended <- err
	}()
	l.Close()
	if err := <-ended; err == nil || errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
}
