package pages

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// sharedFor is how long a page is shared between requests. Making the page of a large fleet takes tens of MiB, which clients
// that do not read must not hold once each.
const sharedFor = 2 * time.Second

// shared makes a page once for all requests within sharedFor.
type shared struct {
	inner http.Handler

	mutex sync.Mutex
	page  *page // nil: none, or too old
}

// ServeHTTP sends the page.
func (s *shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	current := s.current(r)
	w.Header().Set("Content-Type", current.header.Get("Content-Type"))
	w.Header().Set("Vary", "Accept-Encoding")
	if current.header.Get("Content-Encoding") != "gzip" {
		w.WriteHeader(current.status)
		_, _ = w.Write(current.body.Bytes())
		return
	}
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(current.status)
		_, _ = w.Write(current.body.Bytes())
		return
	}
	text, err := gzip.NewReader(bytes.NewReader(current.body.Bytes()))
	if err != nil {
		http.Error(w, "the page cannot be read", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(current.status)
	_, _ = io.Copy(w, text) // it is our own page
}

// current returns the current page, which is kept compressed at a twentieth of its size.
func (s *shared) current(r *http.Request) *page {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.page == nil {
		made := &page{header: http.Header{}, status: http.StatusOK}
		request := &http.Request{Method: http.MethodGet, URL: r.URL, Header: http.Header{"Accept-Encoding": {"gzip"}}}
		s.inner.ServeHTTP(made, request)
		s.page = made
		time.AfterFunc(sharedFor, s.forget)
	}
	return s.page
}

func (s *shared) forget() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.page = nil
}

// acceptsGzip reports whether the client accepts gzip; a client that gives it a quality value gets plain text.
func acceptsGzip(r *http.Request) bool {
	for encoding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(encoding) == "gzip" {
			return true
		}
	}
	return false
}

// page is an answer in memory.
type page struct {
	header http.Header
	status int
	body   bytes.Buffer
}

var _ http.ResponseWriter = (*page)(nil)

// Header returns the header to be sent.
func (p *page) Header() http.Header { return p.header }

// WriteHeader stores the status.
func (p *page) WriteHeader(status int) { p.status = status }

// Write stores the content.
func (p *page) Write(content []byte) (int, error) { return p.body.Write(content) }
