package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/cnpg-i/scale-to-zero/internal/porttest"
	"github.com/cnpg-i/scale-to-zero/internal/postgrestest"
	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message is the kernel's message for an ended socket, with the netlink header, as the filter sees it.
func message(family byte, port uint16, peer [16]byte, peerPort uint16, received uint64) []byte {
	m := make([]byte, atInfo+4+lengthCounters)
	m[atMessage] = family
	binary.BigEndian.PutUint16(m[atMessage+offsetSourcePort:], port)
	binary.BigEndian.PutUint16(m[atMessage+offsetDestinationPort:], peerPort)
	copy(m[atMessage+offsetDestination:], peer[:])
	binary.NativeEndian.PutUint16(m[atAttributes:], 5)
	binary.NativeEndian.PutUint16(m[atAttributes+2:], 10) // INET_DIAG_PROTOCOL
	binary.NativeEndian.PutUint16(m[atInfo:], 4+lengthCounters)
	binary.NativeEndian.PutUint16(m[atInfo+2:], attributeInfo)
	binary.NativeEndian.PutUint64(m[atReceived:], received)
	return m
}

func TestFilter_passesWhatMayBeAClient(t *testing.T) {
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
		{"an SSLRequest alone does not", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 8+1), false},
		{"pg_isready passes", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, 62), true},
		{"the shortest startup packet passes", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, uint64(contract.MinStartupPacketBytes)), true},
		{"one byte less does not", message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 1, uint64(contract.MinStartupPacketBytes)-1), false},
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

func TestDecode_readsPeerAndBytes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, raw := range map[string][]byte{
		"10.0.0.1:4711":  message(unix.AF_INET, 5432, [16]byte{10, 0, 0, 1}, 4711, 416),
		"[fd00::1]:4711": message(unix.AF_INET6, 5432, [16]byte{0xfd, 15: 1}, 4711, 416),
		"10.0.0.2:4711":  message(unix.AF_INET6, 5432, [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2}, 4711, 416),
	} {
		got, err := decode(raw[atMessage:], now)
		if err != nil || got.Peer.String() != want || got.Received != 416 || !got.At.Equal(now) {
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

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// expect waits for the report of one client.
func expect(t *testing.T, l *Listener, peer string) activity.Ended {
	t.Helper()
	deadline := time.Now().Add(patience)
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

// Every way to connect and disconnect on a real server, with and without TLS, and its verdict.
func TestJudge_onARealServer(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		s.EnableTLS(t)
		s.Execute(t, "create role app login password 'right'", "create database app owner app")
		listener, err := Listen(s.Port)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if _, err := listener.Prove(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, row := range []struct {
			rule string
			come func(*testing.T, *net.Conn) // stores its connection
			want activity.Verdict
		}{
			{"a bare connect", raw(s.Port), activity.VerdictIncomplete},
			{"an SSLRequest alone", raw(s.Port, &pgproto3.SSLRequest{}), activity.VerdictIncomplete},
			{"pg_isready", raw(s.Port, &pgproto3.StartupMessage{
				ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "app", "database": "app"},
			}), activity.VerdictUnseen},
			{"the shortest startup packet", raw(s.Port, &pgproto3.StartupMessage{
				ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u"},
			}), activity.VerdictUnseen},
			{"a wrong password", login(s.Port, "wrong", "app", "disable"), activity.VerdictUnseen},
			{"a missing database", login(s.Port, "right", "missing", "disable"), activity.VerdictUnseen},
			{"a login", login(s.Port, "right", "app", "disable"), activity.VerdictUnseen},
			{"a wrong password over TLS", login(s.Port, "wrong", "app", "require"), activity.VerdictUnseen},
			{"a login over TLS", login(s.Port, "right", "app", "require"), activity.VerdictUnseen},
		} {
			t.Run(row.rule, func(t *testing.T) {
				var conn net.Conn
				row.come(t, &conn)
				report := expect(t, listener, conn.LocalAddr().String())
				if got := activity.Judge(report, activity.Surroundings{}); got != row.want {
					t.Errorf("%+v is judged %s, want %s", report, got, row.want)
				} else {
					t.Logf("%d bytes received", report.Received)
				}
			})
		}
	})
}

// raw sends messages, reads an answer to each, and closes the connection.
func raw(port uint16, messages ...pgproto3.FrontendMessage) func(*testing.T, *net.Conn) {
	return func(t *testing.T, conn *net.Conn) {
		t.Helper()
		opened, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err != nil {
			t.Fatal(err)
		}
		*conn = opened
		for _, message := range messages {
			packet, err := message.Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Write(packet); err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Read(make([]byte, 1024)); err != nil {
				t.Fatal(err)
			}
		}
		_ = opened.Close()
	}
}

// login logs in, or tries to, and disconnects.
func login(port uint16, password, database, mode string) func(*testing.T, *net.Conn) {
	return func(t *testing.T, conn *net.Conn) {
		t.Helper()
		config, err := pgx.ParseConfig(fmt.Sprintf("postgres://app:%s@127.0.0.1:%d/%s?sslmode=%s", password, port, database, mode))
		if err != nil {
			t.Fatal(err)
		}
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			var dialer net.Dialer
			opened, err := dialer.DialContext(ctx, network, address)
			*conn = opened
			return opened, err
		}
		if session, err := pgx.ConnectConfig(t.Context(), config); err == nil {
			_ = session.Close(t.Context())
		}
	}
}

// Clients of both address families are reported, also by a dual-stack socket, which sees IPv4 clients as IPv6.
func TestListener_reportsBothFamilies(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ rule, listen, from string }{
		{"IPv4", "127.0.0.1", "127.0.0.1"},
		{"IPv6", "::1", "::1"},
		{"IPv6 on a socket for both", "", "::1"},
		{"IPv4 on a socket for both", "", "127.0.0.1"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			server, err := net.Listen("tcp", net.JoinHostPort(row.listen, strconv.Itoa(int(porttest.Reserve(t)))))
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
				_, _ = io.Copy(io.Discard, conn)
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
			if _, err := conn.Write(make([]byte, 500)); err != nil {
				t.Fatal(err)
			}
			peer := conn.LocalAddr().String()
			_ = conn.Close()
			if report := expect(t, listener, peer); report.Received < 500 || activity.Judge(report, activity.Surroundings{}) != activity.VerdictUnseen {
				t.Errorf("reported is %+v", report)
			}
		})
	}
}

func TestProve_noticesSilence(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", porttest.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }() // nothing accepts it, so the server's end stays open
	l, err := Listen(uint16(server.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Prove(t.Context()); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v, want ErrUnsupported", err)
	}
}

// A reader slower than the reports learns that some were lost.
func TestReceive_noticesLostReports(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", porttest.Address(t))
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
		reports, err := l.Receive(time.Now().Add(patience))
		if errors.Is(err, ErrLost) {
			return
		}
		if err != nil || len(reports) == 0 {
			t.Fatalf("%d reports arrived and none was lost (%v)", arrived, err)
		}
		arrived += len(reports)
	}
}

// Arrived does not block on another goroutine that is waiting.
func TestArrived_besideAnotherThatWaits(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", porttest.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	l, err := Listen(uint16(server.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if reports, err := l.Receive(time.Now().Add(time.Millisecond)); len(reports) != 0 || err != nil {
		t.Errorf("before anybody came: %v, %v", reports, err)
	}
	arrived := make(chan error)
	go func() {
		for {
			err := l.Wait()
			arrived <- err
			if err != nil {
				return
			}
		}
	}()
	for range 3 {
		client, err := net.Dial("tcp", server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := server.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = accepted.Close()
		_ = client.Close()
		var reports []activity.Ended
		for len(reports) == 0 { // what the last one found may have been announced twice
			if err := <-arrived; err != nil {
				t.Fatal(err)
			}
			if reports, err = l.Arrived(); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.Close()
	for err := range arrived {
		if err != nil {
			break
		}
	}
	if _, err := l.Arrived(); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("after the end: %v", err)
	}
}

func TestOpen_listsSessionsThatHaveNotEnded(t *testing.T) {
	t.Parallel()
	postgrestest.Each(t, func(t *testing.T, s *postgrestest.Server) {
		listener, err := Listen(s.Port)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		s.Execute(t, "create role app login password 'right'")
		come := func(startup string) net.Conn {
			t.Helper()
			conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(s.Port))))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			if startup == "" {
				return conn
			}
			packet, err := (&pgproto3.StartupMessage{
				ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": startup},
			}).Encode(nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 1)); err != nil { // the server asks for the password
				t.Fatal(err)
			}
			return conn
		}
		loggingIn, bare, gone := come("app"), come(""), come("app")
		_ = gone.Close()
		expect(t, listener, gone.LocalAddr().String())
		open, err := listener.Open()
		if err != nil {
			t.Fatal(err)
		}
		verdicts := map[string]activity.Verdict{}
		for _, session := range open {
			verdicts[session.Peer.String()] = activity.JudgeOpen(session, activity.Surroundings{})
		}
		want := map[string]activity.Verdict{
			loggingIn.LocalAddr().String(): activity.VerdictUnseen, bare.LocalAddr().String(): activity.VerdictIncomplete,
		}
		if !maps.Equal(verdicts, want) {
			t.Errorf("open are %v, want %v", verdicts, want)
		}
	})
}

// connected returns both ends of a connection to a server whose sockets the listener watches.
func connected(t *testing.T) (listener *Listener, client, accepted net.Conn) {
	t.Helper()
	server, err := net.Listen("tcp", porttest.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if listener, err = Listen(uint16(server.Addr().(*net.TCPAddr).Port)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(listener.Close)
	if client, err = net.Dial("tcp", server.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if accepted, err = server.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accepted.Close() })
	return listener, client, accepted
}

// A client that is slow to close what the server has closed must not make the list fail: the reports would be begun again.
func TestOpen_passesOverSessionsThatTheServerHasClosed(t *testing.T) {
	t.Parallel()
	listener, client, accepted := connected(t)
	_ = accepted.Close()
	expect(t, listener, client.LocalAddr().String())
	if open, err := listener.Open(); err != nil || len(open) != 0 {
		t.Errorf("open are %v (%v), want none", open, err)
	}
}

// Over TLS a server answers the end of a session, and the client's kernel resets the connection. Until the server closes its socket, the
// session is neither listed nor reported.
func TestOpen_lacksASessionThatWasResetAndIsNotReportedYet(t *testing.T) {
	t.Parallel()
	listener, client, accepted := connected(t)
	if _, err := client.Write(make([]byte, contract.MinStartupPacketBytes)); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if _, err := io.ReadAll(accepted); err != nil {
		t.Fatal(err)
	}
	if _, err := accepted.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; {
		open, err := listener.Open()
		if err != nil {
			t.Fatal(err)
		}
		if len(open) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("open are %v, want none", open)
		}
	}
	if reports, err := listener.Arrived(); err != nil || len(reports) != 0 {
		t.Errorf("reported are %v (%v), want none yet", reports, err)
	}
	_ = accepted.Close()
	expect(t, listener, client.LocalAddr().String())
}

func TestClose_endsReceive(t *testing.T) {
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
