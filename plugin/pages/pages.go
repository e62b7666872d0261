// Package pages serves the plugin's metrics and probes over HTTP. Whoever reaches the pod may read them, and nobody may keep
// Prometheus or the kubelet from it: a kubelet without an answer restarts the pod.
package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cnpg-i/scale-to-zero/sidecar/connlimit"
)

// Limits of the server.
const (
	requestTimeout = 5 * time.Second
	// writeTimeout is for the page of a large fleet, over a slow line.
	writeTimeout = 15 * time.Second
	// idleTimeout is longer than Prometheus' usual interval, so that a scraper keeps its connection.
	idleTimeout   = time.Minute
	maximumHeader = 8 << 10
	// maximumConnections is many times what scrapers and the kubelet need. When there are so many, the source address with the
	// most loses its oldest.
	maximumConnections = 64
	shutdownTimeout    = time.Second
)

// Handler serves /metrics, /healthz, and /readyz with an error until the plugin is ready.
func Handler(metrics prometheus.Gatherer, ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", &shared{inner: promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "the informers are not in sync", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// Serve serves the pages until the context ends.
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
		Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maximumHeader,
		ErrorLog: log.New(io.Discard, "", 0), // what a stranger sends must not fill the log
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(connlimit.New(listener, maximumConnections, nil))
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}
