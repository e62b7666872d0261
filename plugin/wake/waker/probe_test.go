package waker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// postgres answers one startup packet; without an answer it closes the connection. When the client has closed the connection, the
// channel receives its address.
func postgres(t *testing.T, answer pgproto3.BackendMessage) (netip.AddrPort, <-chan netip.AddrPort) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed, done := make(chan netip.AddrPort, 1), make(chan struct{})
	t.Cleanup(func() { _ = listener.Close(); <-done })
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil || answer == nil {
			return
		}
		backend.Send(answer)
		_ = backend.Flush()
		_, _ = io.Copy(io.Discard, conn)
		closed <- addrPort(conn.RemoteAddr())
	}()
	return addrPort(listener.Addr()), closed
}

var password = &pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}}

// sidecars sends to the handler, whatever the instance.
func sidecars(t *testing.T, handler http.HandlerFunc) *Sidecars {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	s := NewSidecars(slog.New(slog.DiscardHandler))
	s.port = addrPort(server.Listener.Addr()).Port()
	return s
}

func TestProber_asksWhetherPostgreSQLAcceptsSessions(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		answer pgproto3.BackendMessage
		want   bool
	}{
		{"a server that asks for a password accepts sessions", password, true},
		{"one that starts or shuts down does not", &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03"}, false},
		{"one whose rules reject the probe does", &pgproto3.ErrorResponse{Severity: "FATAL", Code: "28000"}, true},
		{"one that is full does", &pgproto3.ErrorResponse{Severity: "FATAL", Code: "53300"}, true},
		{"one that closes the connection does not", nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			p := &Prober{within: time.Minute, Sidecars: sidecars(t, func(http.ResponseWriter, *http.Request) {})}
			address, _ := postgres(t, row.answer)
			if got := p.AcceptsSessions(t.Context(), address); got != row.want {
				t.Errorf("got %t, want %t", got, row.want)
			}
		})
	}
	t.Run("where nobody listens nobody accepts sessions", func(t *testing.T) {
		t.Parallel()
		p := &Prober{within: time.Minute, Sidecars: sidecars(t, func(http.ResponseWriter, *http.Request) { t.Error("a sidecar was sent a port of no connection") })}
		if p.AcceptsSessions(t.Context(), netip.MustParseAddrPort("127.0.0.1:1")) {
			t.Error("a closed port accepts sessions")
		}
	})
}

func TestProber_keepsTheConnectionUntilTheSidecarKnowsItsPort(t *testing.T) {
	t.Parallel()
	received, release := make(chan contract.ClientAddress, 1), make(chan struct{})
	p := &Prober{within: time.Minute, Sidecars: sidecars(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		address, err := contract.DecodeClientAddress(body)
		if err != nil {
			t.Error(err)
		}
		received <- address
		<-release
	})}
	p.Sidecars.client.Transport = patient{p.Sidecars.client.Transport}
	instance, closed := postgres(t, password)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := p.dial(ctx, instance)
	if err != nil {
		t.Fatal(err)
	}
	if !p.start(ctx, conn, instance, netip.AddrPort{}, 0, time.Minute) {
		t.Error("PostgreSQL did not answer")
	}
	cancel() // as if the search had ended
	address := <-received
	select {
	case <-closed:
		t.Error("the connection was closed before the sidecar had answered")
	default:
	}
	close(release)
	local := <-closed
	if diff := cmp.Diff(contract.ClientAddress{Version: 1, Port: local.Port(), Peer: local, Probe: true}, address, cmp.Comparer(equal)); diff != "" {
		t.Errorf("client address (-want +got):\n%s", diff)
	}
}

// PostgreSQL itself ends a connection that it refuses, and the sidecar may see that at once.
func TestProber_tellsTheSidecarBeforePostgreSQLCanRefuse(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var asked atomic.Int32
	var told atomic.Bool
	p := &Prober{within: time.Minute, Sidecars: sidecars(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if asked.Add(1) < 3 { // it is starting
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		told.Store(true)
	})}
	p.Sidecars.client.Transport = patient{p.Sidecars.client.Transport}
	early := make(chan bool, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		backend := pgproto3.NewBackend(conn, conn)
		_, _ = backend.ReceiveStartupMessage()
		early <- !told.Load()
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03"})
		_ = backend.Flush()
		_ = conn.Close()
	}()
	if p.AcceptsSessions(t.Context(), addrPort(listener.Addr())) {
		t.Error("a server that starts accepts sessions")
	}
	if <-early {
		t.Error("PostgreSQL could refuse the probe before the sidecar knew of it")
	}
}

// PostgreSQL forks a process for each connection: a busy one is not asked again before it has answered.
func TestProber_connectsToAnInstanceOnceAtATime(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	accept := func() net.Conn {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	p := &Prober{within: time.Minute, Sidecars: sidecars(t, func(http.ResponseWriter, *http.Request) {})}
	instance, answer := addrPort(listener.Addr()), make(chan bool, 1)
	go func() { answer <- p.AcceptsSessions(t.Context(), instance) }()
	conn := accept()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		t.Fatal(err)
	}
	first := p.connected.Get(instance)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if p.AcceptsSessions(ctx, instance) {
		t.Error("another probe has an answer before the first one")
	}
	marker, err := net.Dial("tcp", instance.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = marker.Close() }()
	if next := accept(); next.RemoteAddr().String() != marker.LocalAddr().String() {
		t.Error("another probe has connected")
	}
	backend.Send(password)
	if err := backend.Flush(); err != nil {
		t.Fatal(err)
	}
	if !<-answer || !first.wait(t.Context()) {
		t.Error("the first probe, or one that waits for it, has no answer")
	}
}

// told is a sidecar that answers at once.
type told struct{}

func (told) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// The kubelet gives PostgreSQL five seconds to answer. Where it finds a busy one ready, so does a probe.
func TestProber_isAsPatientAsTheKubelet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Prober{Sidecars: NewSidecars(slog.New(slog.DiscardHandler))}
		p.Sidecars.client.Transport = told{}
		own, server := net.Pipe()
		go func() {
			backend := pgproto3.NewBackend(server, server)
			_, _ = backend.ReceiveStartupMessage()
			time.Sleep(4 * time.Second) // the bubble's clock
			backend.Send(password)
			_ = backend.Flush()
		}()
		if !p.start(t.Context(), own, netip.MustParseAddrPort("10.0.0.1:5432"), netip.AddrPort{}, p.limit(probeTimeout), p.limit(answerTimeout)) {
			t.Error("an answer after four seconds is none")
		}
		synctest.Wait()
	})
}

func equal(a, b netip.AddrPort) bool { return a == b }

// patient sends without a deadline, because this machine may be slower than a network has to be.
type patient struct{ http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	return p.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
}

func TestProber_closesTheConnectionThoughTheSidecarDoesNotAnswer(t *testing.T) {
	t.Parallel()
	p := &Prober{Sidecars: sidecars(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})}
	instance, closed := postgres(t, password)
	began := time.Now()
	if !p.AcceptsSessions(t.Context(), instance) {
		t.Error("PostgreSQL does not accept sessions")
	}
	<-closed
	if kept := time.Since(began); kept < clientAddressTimeout {
		t.Errorf("the connection was kept for %s, want at least %s", kept, clientAddressTimeout)
	}
}

func TestSendClientAddress_namesPortAndPeer(t *testing.T) {
	t.Parallel()
	received := make(chan string, 1)
	w := newWorld(t, time.Minute, awake).waker
	w.Sidecars = sidecars(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		received <- r.Method + " " + r.URL.Path + " " + string(body)
	})
	strict := w.Sidecars.client.Transport
	w.Sidecars.client.Transport = patient{strict}
	w.SendClientAddress(t.Context(), netip.MustParseAddrPort("127.0.0.1:5432"),
		netip.MustParseAddrPort("10.0.0.7:40000"), netip.MustParseAddrPort("[::ffff:192.0.2.1]:5000"))
	want := `POST /client-address {"version":1,"port":40000,"peer":"192.0.2.1:5000"}`
	if diff := cmp.Diff(want, <-received); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	w.Sidecars.client.Transport = strict
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w.SendClientAddress(gone, netip.MustParseAddrPort("127.0.0.1:5432"), netip.AddrPort{}, netip.AddrPort{})
}

// late answers like a sidecar that starts at a time, and records what it has accepted.
type late struct {
	since    time.Time
	accepted chan string
}

func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	if time.Now().Before(l.since) {
		return nil, errors.New("connection refused")
	}
	body, err := io.ReadAll(r.Body)
	l.accepted <- string(body)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, err
}

// During a wake, PostgreSQL may accept sessions before its sidecar has started, and a session may end before the first
// sample.
func TestSendClientAddress_repeatsEachAddressForAMinute(t *testing.T) {
	t.Parallel()
	const first, second = `{"version":1,"port":40000,"peer":"192.0.2.1:5000"}`, `{"version":1,"port":40001,"peer":"192.0.2.1:5000"}`
	for _, row := range []struct {
		rule           string
		starts, second time.Duration
		want           string
	}{
		{"a sidecar that starts late is told of every client", 10 * time.Second, 2 * time.Second, first + second},
		{"one that starts later still is told of those of the last minute", 70 * time.Second, 50 * time.Second, second},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, awake).waker
				sidecar := late{since: time.Now().Add(row.starts), accepted: make(chan string, 3)}
				w.Sidecars = NewSidecars(slog.New(slog.DiscardHandler))
				w.Sidecars.client.Transport = sidecar
				instance, peer := netip.MustParseAddrPort("10.0.0.1:5432"), netip.MustParseAddrPort("192.0.2.1:5000")
				w.SendClientAddress(t.Context(), instance, netip.AddrPortFrom(instance.Addr(), 40000), peer)
				time.Sleep(row.second) // the bubble's clock
				w.SendClientAddress(t.Context(), instance, netip.AddrPortFrom(instance.Addr(), 40001), peer)
				time.Sleep(time.Minute)
				synctest.Wait()
				close(sidecar.accepted)
				accepted := ""
				for body := range sidecar.accepted {
					accepted += body
				}
				if accepted != row.want {
					t.Errorf("the sidecar has accepted %q, want %q", accepted, row.want)
				}
			})
		})
	}
}

func TestSidecars_followNoRedirect(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a sidecar sent the plugin elsewhere") }))
	defer elsewhere.Close()
	s := sidecars(t, http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect).ServeHTTP)
	local := netip.MustParseAddr("127.0.0.1")
	if err := s.do(t.Context(), http.MethodPost, local, "/", []byte("{}")); err == nil {
		t.Error("a redirect is taken for an answer")
	}
}

func TestSidecars_askWhetherAPasswordIsSet(t *testing.T) {
	t.Parallel()
	s := sidecars(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != contract.PathPasswordSet || r.URL.Query().Get(contract.QueryParameterRole) != "a&b" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s.client.Transport = patient{s.client.Transport}
	local := netip.MustParseAddr("127.0.0.1")
	if !s.PasswordSet(t.Context(), local, "a&b") || s.PasswordSet(t.Context(), local, "app") {
		t.Error("the answer of the sidecar is not that of PasswordSet")
	}
}

func TestProber_signalsTheClientItActsFor(t *testing.T) {
	t.Parallel()
	received := make(chan contract.ClientAddress, 1)
	p := &Prober{within: time.Minute, Sidecars: sidecars(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		address, err := contract.DecodeClientAddress(body)
		if err != nil {
			t.Error(err)
		}
		received <- address
	})}
	p.Sidecars.client.Transport = patient{p.Sidecars.client.Transport}
	instance, closed := postgres(t, password)
	client := netip.MustParseAddrPort("192.0.2.1:5000")
	p.Signal(t.Context(), instance, client)
	want := contract.ClientAddress{Version: 1, Port: (<-closed).Port(), Peer: client}
	if diff := cmp.Diff(want, <-received, cmp.Comparer(equal)); diff != "" {
		t.Errorf("client address (-want +got):\n%s", diff)
	}
}
