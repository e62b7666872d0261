package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; a passing test never reaches it.
const patience = 10 * time.Second

func config() Config { return Config{WriteTimeout: patience, MaximumConnections: 8} }

// start serves the handler until the test calls end, which waits for it to stop.
func start(t *testing.T, handler http.Handler) (address string, end func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ServeListener(ctx, listener, handler, config()) }()
	end = func() error {
		cancel()
		return receive(t, ended)
	}
	t.Cleanup(cancel)
	return listener.Addr().String(), end
}

// receive waits for a value.
func receive[T any](t *testing.T, values <-chan T) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(patience):
		t.Fatal("nothing happened")
		panic("unreachable")
	}
}

// talk sends bytes and returns the answer up to the end of the connection, or the error.
func talk(address, request string) string {
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, request) // the server may close before it has read everything
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

func TestServe_answersAndEndsWithTheContext(t *testing.T) {
	t.Parallel()
	address, end := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }))
	answer := talk(address, "GET / HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200 ") || !strings.HasSuffix(answer, "ok\n") {
		t.Errorf("answer: %q", answer)
	}
	if err := end(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the address still accepts connections")
	}
}

func TestServe_refusesALargeHeader(t *testing.T) {
	t.Parallel()
	address, end := start(t, http.NotFoundHandler())
	// net/http reads up to 4 KiB more than the limit.
	answer := talk(address, "GET / HTTP/1.1\r\nHost: pod\r\nX: "+strings.Repeat("x", maximumHeader+(4<<10))+"\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 431 ") {
		t.Errorf("answer: %.60q", answer)
	}
	if err := end(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestServe_letsAPageFinish(t *testing.T) {
	t.Parallel()
	asked, finish := make(chan struct{}), make(chan struct{})
	address, end := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-finish
		_, _ = io.WriteString(w, "whole page")
	}))
	answer := make(chan string, 1)
	go func() { answer <- talk(address, "GET / HTTP/1.0\r\n\r\n") }()
	receive(t, asked)
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	close(finish)
	if got := receive(t, answer); !strings.HasSuffix(got, "whole page") {
		t.Errorf("answer: %q", got)
	}
	if err := receive(t, ended); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestServe_waitsNoLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	asked, finish := make(chan struct{}), make(chan struct{})
	address, end := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done() // the connection is cut
		close(finish)
	}))
	go talk(address, "GET / HTTP/1.0\r\n\r\n")
	receive(t, asked)
	if err := end(); err != nil {
		t.Errorf("ended with %v", err)
	}
	receive(t, finish)
}

func TestServe_namesWhatFailed(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), taken.Addr().String(), http.NotFoundHandler(), config()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error: %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ServeListener(t.Context(), taken, http.NotFoundHandler(), config()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("error: %v", err)
	}
}

func TestServe_listensOnTheAddress(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Serve(ctx, "127.0.0.1:0", http.NotFoundHandler(), config()); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}
