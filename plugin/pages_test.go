package main

import (
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; a passing test never reaches it.
const patience = time.Minute

// gauge is a registry with one series.
func gauge(value float64) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "x", Help: "X."})
	g.Set(value)
	registry.MustRegister(g)
	return registry
}

// start serves until the test ends.
func start(t *testing.T, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- httpserver.ServeListener(ctx, listener, handler, pagesConfig()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	return listener.Addr().String()
}

func dial(t *testing.T, source, address string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// ask sends a request over a connection and returns the answer.
func ask(t *testing.T, conn net.Conn, path string) string {
	t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("read the answer: %v", err)
	}
	return string(answer)
}

func always() bool { return true }

func never() bool { return false }

func TestPages_tellsWhetherThePluginIsReady(t *testing.T) {
	t.Parallel()
	var ready, stale atomic.Bool
	address := start(t, pages(gauge(7), ready.Load, stale.Load))
	for _, row := range []struct {
		ready, stale bool
		path, want   string
	}{
		{false, false, "/healthz", "HTTP/1.1 200 "},
		{false, false, "/readyz", "HTTP/1.1 503 "},
		{true, false, "/readyz", "HTTP/1.1 200 "},
		{true, false, "/peer", "HTTP/1.1 200 "},
		{true, true, "/peer", "HTTP/1.1 503 "},
		{true, true, "/healthz", "HTTP/1.1 200 "},
		{true, true, "/readyz", "HTTP/1.1 200 "},
		{true, false, "/else", "HTTP/1.1 404 "},
	} {
		ready.Store(row.ready)
		stale.Store(row.stale)
		if answer := ask(t, dial(t, "127.0.0.1", address), row.path); !strings.HasPrefix(answer, row.want) {
			t.Errorf("%s: %q", row.path, answer)
		}
	}
}

// TestServePages_answersBesideThoseWhoTieItUp opens more connections from strangers than are allowed: silent ones, ones with half a
// request, and ones that never read the answer.
func TestServePages_answersBesideThoseWhoTieItUp(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	large := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: "Large."}, []string{"number"})
	for i := range 20_000 {
		large.WithLabelValues(strconv.Itoa(i)).Set(1)
	}
	registry.MustRegister(large)
	address := start(t, pages(registry, always, never))
	for _, stranger := range []string{"127.0.0.8", "127.0.0.9"} {
		for i := range pagesConfig().MaximumConnections {
			conn := dial(t, stranger, address)
			said := []string{"", "GET /met", "GET /metrics HTTP/1.1\r\nHost: pod\r\n\r\n"}[i%3]
			if _, err := io.WriteString(conn, said); err != nil {
				t.Fatal(err)
			}
		}
	}
	if answer := ask(t, dial(t, "127.0.0.1", address), "/healthz"); !strings.HasSuffix(answer, "ok\n") {
		t.Errorf("the kubelet reads %q", answer)
	}
	if answer := ask(t, dial(t, "127.0.0.1", address), "/metrics"); !strings.Contains(answer, `large{number="19999"} 1`) {
		t.Errorf("a scraper reads %d bytes", len(answer))
	}
}

// counting counts how often it is gathered.
type counting struct {
	prometheus.Gatherer
	count atomic.Int64
}

func (c *counting) Gather() ([]*dto.MetricFamily, error) {
	c.count.Add(1)
	return c.Gatherer.Gather()
}

func TestSharedPage_isMadeOnceForAllWhoAskWithinItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gathered := &counting{Gatherer: gauge(7)}
		handler := pages(gathered, always, never)
		get := func(encoding string) *httptest.ResponseRecorder {
			request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			request.Header.Set("Accept-Encoding", encoding)
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			return answer
		}
		const want = "# HELP x X.\n# TYPE x gauge\nx 7\n"
		if answer := get("deflate"); answer.Code != http.StatusOK || answer.Body.String() != want {
			t.Errorf("the page is %d %q", answer.Code, answer.Body)
		}
		answer := get("deflate, gzip")
		text, err := gzip.NewReader(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := io.ReadAll(text); string(page) != want || answer.Header().Get("Content-Encoding") != "gzip" {
			t.Errorf("compressed the page is %q, %v", page, err)
		}
		if count := gathered.count.Load(); count != 1 {
			t.Errorf("it was made %d times", count)
		}
		time.Sleep(sharedFor)
		synctest.Wait()
		get("")
		if count := gathered.count.Load(); count != 2 {
			t.Errorf("later it was made %d times", count)
		}
	})
}

// A query selects metrics for nobody, because the others would get the same page.
func TestSharedPage_isWholeWhateverIsAskedFor(t *testing.T) {
	t.Parallel()
	handler := pages(gauge(7), always, never)
	for _, target := range []string{"/metrics?name[]=y", "/metrics"} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, target, nil))
		if !strings.Contains(answer.Body.String(), "x 7") {
			t.Errorf("%s is answered with %q", target, answer.Body)
		}
	}
}

func TestSharedPage_sendsAnErrorOn(t *testing.T) {
	t.Parallel()
	failing := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, io.ErrUnexpectedEOF })
	answer := httptest.NewRecorder()
	pages(failing, always, never).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), "unexpected EOF") {
		t.Errorf("the answer is %d %q", answer.Code, answer.Body)
	}
}

func TestServePages_namesWhatFailed(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if err := servePages(t.Context(), listener.Addr().String(), http.NotFoundHandler()); err == nil {
		t.Error("it serves on a port that is taken")
	}
}
