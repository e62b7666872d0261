package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

func config() Config { return Config{WriteTimeout: patience, MaximumConnections: 8} }

// start serves the handler until the test calls end, which waits for it to stop.
func start(t *testing.T, handler http.Handler) (address string, end func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String(), serve(t, listener, handler)
}

// serve does so on a listener, which it closes.
func serve(t *testing.T, listener net.Listener, handler http.Handler) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ServeListener(ctx, listener, handler, config()) }()
	t.Cleanup(cancel)
	return func() error {
		cancel()
		return receive(t, ended)
	}
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
	return say(conn, request)
}

// say does so on a connection, and closes it.
func say(conn net.Conn, request string) string {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, request) // the server may close before it has read everything
	answer, _ := io.ReadAll(conn)
	return string(answer)
}

func TestServe_answersAndEndsWithTheContext(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	end := serve(t, listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }))
	answer := talk(listener.Addr().String(), "GET / HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200 ") || !strings.HasSuffix(answer, "ok\n") {
		t.Errorf("answer: %q", answer)
	}
	if err := end(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) { // somebody else may have got the port by now
		t.Errorf("the address still accepts connections: %v", err)
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

// pipe is a listener in memory with one client.
type pipe struct {
	client chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case conn := <-p.client:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Addr() net.Addr { return &net.TCPAddr{} }

// The bubble's clock stands still while the page is written, which may take no longer than shutdownTimeout.
func TestServe_letsAPageFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, finish := make(chan struct{}), make(chan struct{})
		listener := &pipe{client: make(chan net.Conn, 1), closed: make(chan struct{})}
		client, server := net.Pipe()
		listener.client <- server
		end := serve(t, listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(asked)
			<-finish
			_, _ = io.WriteString(w, "whole page")
		}))
		answer := make(chan string, 1)
		go func() { answer <- say(client, "GET / HTTP/1.0\r\n\r\n") }()
		receive(t, asked)
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		synctest.Wait() // the server waits for the page
		close(finish)
		if got := receive(t, answer); !strings.HasSuffix(got, "whole page") {
			t.Errorf("answer: %q", got)
		}
		if err := receive(t, ended); err != nil {
			t.Errorf("ended with %v", err)
		}
	})
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
