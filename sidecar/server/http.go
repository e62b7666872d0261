package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/introduction"
)

// Limits of the HTTP server: whoever reaches the pod may ask it, and nobody may tie it up.
const (
	requestTimeout = 5 * time.Second
	// idleTimeout is longer than Prometheus' usual interval of 30 s, so that a scraper keeps its connection.
	idleTimeout = time.Minute
	// maximumHeader, in bytes, is many times what a scraper sends.
	maximumHeader = 8 << 10
	// maximumConnections bounds the memory that strangers can take, at some 10 KiB a connection: a sidecar that is killed
	// for want of memory makes the pod not ready.
	maximumConnections = 32
	// farewell is how long a page that is being sent may go on when the worker ends.
	farewell = time.Second
)

// Handler serves the pages, and takes introductions in.
func (m *Metrics) Handler(cluster, pod string, introductions *introduction.Book) http.Handler {
	mux := http.NewServeMux()
	// Compression would keep buffers of many times the size of the page.
	options := promhttp.HandlerOpts{MaxRequestsInFlight: 4, DisableCompression: true}
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, options))
	mux.HandleFunc("GET /activity", func(w http.ResponseWriter, _ *http.Request) {
		body, err := activity.EncodeReport(m.Report(cluster, pod))
		if err != nil {
			http.Error(w, "the report cannot be encoded", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	mux.HandleFunc("POST /introduce", func(w http.ResponseWriter, r *http.Request) {
		introduce(w, r, introductions)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}

// introduce takes in for whom the sender's next connection to PostgreSQL speaks.
func introduce(w http.ResponseWriter, r *http.Request, introductions *introduction.Book) {
	sender, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "the sender has no address", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, introduction.MaximumBody+1))
	if err != nil {
		http.Error(w, "the introduction cannot be read", http.StatusBadRequest)
		return
	}
	i, err := introduction.Parse(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	introductions.Add(sender.Addr(), i)
	w.WriteHeader(http.StatusNoContent)
}

// Serve serves the pages until the context ends, and then lets what is being sent finish for a second.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	return serve(ctx, listener, handler)
}

// serve serves on a listener, which it closes.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maximumHeader,
		// What a stranger sends must not fill the log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // its only error is that of the listener, which Shutdown has closed
		}
	})
	err := server.Serve(netutil.LimitListener(listener, maximumConnections))
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}
