package waker

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

// server answers one startup packet; without an answer it hangs up.
func server(t *testing.T, answer pgproto3.BackendMessage) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
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
		_, _ = io.Copy(io.Discard, conn) // until the other side hangs up
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

func TestKnock(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule   string
		answer pgproto3.BackendMessage
		ready  bool
	}{
		{"a server that asks for a password accepts sessions", &pgproto3.AuthenticationSASL{AuthMechanisms: []string{"SCRAM-SHA-256"}}, true},
		{"one that starts or shuts down does not", &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03"}, false},
		{"one whose rules reject the question does", &pgproto3.ErrorResponse{Severity: "FATAL", Code: "28000"}, true},
		{"one that is full does", &pgproto3.ErrorResponse{Severity: "FATAL", Code: "53300"}, true},
		{"one that hangs up does not", nil, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := Knock(t.Context(), server(t, row.answer)); got != row.ready {
				t.Errorf("got %t, want %t", got, row.ready)
			}
		})
	}
	t.Run("where nobody listens nobody accepts sessions", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
		if Knock(t.Context(), netip.MustParseAddrPort(listener.Addr().String())) {
			t.Error("a closed port accepts sessions")
		}
	})
}

func TestIntroduce(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	sidecar := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		told <- r.Method + " " + r.URL.Path + " " + string(body)
	}))
	defer sidecar.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	w := &Waker{HTTP: &http.Client{Transport: transport}, Logger: slog.New(slog.DiscardHandler)}
	w.introduce(t.Context(), netip.MustParseAddrPort(sidecar.Listener.Addr().String()),
		netip.MustParseAddrPort("10.0.0.7:40000"), netip.MustParseAddrPort("[::ffff:192.0.2.1]:5000"))
	want := `POST /introduce {"version":1,"port":40000,"peer":"192.0.2.1:5000"}`
	if diff := cmp.Diff(want, <-told); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w.Introduce(gone, netip.MustParseAddrPort("127.0.0.1:5432"), netip.AddrPort{}, netip.AddrPort{}) // nobody to tell: no harm
}

func TestAnIntroductionGoesNowhereElse(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a sidecar sent the plugin elsewhere") }))
	defer elsewhere.Close()
	sidecar := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer sidecar.Close()
	w := &Waker{HTTP: NewHTTP(), Logger: slog.New(slog.DiscardHandler)}
	if err := w.post(t.Context(), sidecar.URL, []byte("{}")); err == nil {
		t.Error("what is no sidecar's answer is taken for one")
	}
}
