package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

// pagesConfig limits what strangers can use.
func pagesConfig() httpserver.Config {
	return httpserver.Config{
		WriteTimeout: 15 * time.Second, // for the page of a large fleet over a slow line
		// Many times what scrapers and the kubelet need.
		MaximumConnections: 64,
	}
}

// pages serves /metrics, /healthz, /readyz, which fails until the plugin is ready, and /peer, by which other replicas
// learn whether this one can serve clients. The kubelet must not probe /peer: while the API server is down, it fails on
// every replica, and the operator needs them.
func pages(metrics prometheus.Gatherer, ready, stale func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", &shared{inner: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "the informers are not in sync, or EndpointSlices are still to be made", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc(peerPage, func(w http.ResponseWriter, _ *http.Request) {
		if stale() {
			http.Error(w, "the API server has not answered", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// servePages serves them until the context ends. Anybody who can reach the pod may read them, but must not be able to
// lock out Prometheus or the kubelet: a kubelet without an answer restarts the pod.
func servePages(ctx context.Context, address string, handler http.Handler) error {
	return httpserver.Serve(ctx, address, handler, pagesConfig())
}

// peerPage is what replicas ask each other for.
const peerPage = "/peer"

// peerProber asks replicas for /peer, each time over a connection of its own, as a client's is.
type peerProber struct {
	port   string
	client *http.Client
}

// newPeerProber makes a prober for replicas that serve their pages on the port of address, which is this replica's own.
func newPeerProber(address string) (*peerProber, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("read the port of the pages: %w", err)
	}
	return &peerProber{port: port, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}, nil
}

// ask fails unless the replica answers before the context ends.
func (p *peerProber) ask(ctx context.Context, replica netip.Addr) error {
	page := "http://" + net.JoinHostPort(replica.String(), p.port) + peerPage
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", page, err)
	}
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", page, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask for %s: %s", page, response.Status)
	}
	return nil
}

// sharedFor is how long a page is shared between requests. Making the page of a large fleet takes tens of MiB, which
// clients that do not read must not hold once each.
const sharedFor = 2 * time.Second

// shared makes a page once for all requests within sharedFor.
type shared struct {
	inner http.Handler

	mutex sync.Mutex
	page  *page // nil: none, or too old
}

// ServeHTTP sends the page.
func (s *shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	current := s.current()
	w.Header().Set("Content-Type", current.header.Get("Content-Type"))
	w.Header().Set("Vary", "Accept-Encoding")
	var body io.Reader = bytes.NewReader(current.body.Bytes())
	switch compressed := current.header.Get("Content-Encoding") == "gzip"; {
	case compressed && acceptsGzip(r):
		w.Header().Set("Content-Encoding", "gzip")
	case compressed:
		text, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, "cannot read the page", http.StatusInternalServerError)
			return
		}
		body = text
	}
	w.WriteHeader(current.status)
	_, _ = io.Copy(w, body) // it is our own page
}

// current returns the current page, which is kept compressed at a twentieth of its size. The request that makes it has
// no URL, so that no client's query selects metrics for the others.
func (s *shared) current() *page {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.page == nil {
		made := &page{header: http.Header{}, status: http.StatusOK}
		request := &http.Request{Method: http.MethodGet, Header: http.Header{"Accept-Encoding": {"gzip"}}}
		s.inner.ServeHTTP(made, request)
		s.page = made
		time.AfterFunc(sharedFor, func() {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.page = nil
		})
	}
	return s.page
}

// acceptsGzip reports whether the client accepts gzip; a client that gives it a quality value gets plain text.
func acceptsGzip(r *http.Request) bool {
	return slices.ContainsFunc(strings.Split(r.Header.Get("Accept-Encoding"), ","),
		func(encoding string) bool { return strings.TrimSpace(encoding) == "gzip" })
}

// page is an answer in memory.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header returns the header to be sent.
func (p *page) Header() http.Header { return p.header }

// WriteHeader stores the status.
func (p *page) WriteHeader(status int) { p.status = status }

// Write stores the content.
func (p *page) Write(content []byte) (int, error) { return p.body.Write(content) }
