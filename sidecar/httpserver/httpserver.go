// Package httpserver serves pages to whoever reaches the pod. Nobody may tie the server up, by silence, by many connections or by
// what he sends.
package httpserver

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

	"github.com/cnpg-i/scale-to-zero/sidecar/connlimit"
)

const (
	// RequestTimeout is within what time a request must have arrived.
	RequestTimeout = 5 * time.Second
	// IdleTimeout is longer than Prometheus' usual intervals, so that a scraper keeps its connection.
	IdleTimeout = time.Minute
	// ShutdownTimeout is how long a page that is being sent may go on when the context ends.
	ShutdownTimeout = time.Second
	// maximumHeader, in bytes, is many times what a scraper sends.
	maximumHeader = 8 << 10
)

// Config is what differs from server to server.
type Config struct {
	// WriteTimeout is within what time an answer must have been read.
	WriteTimeout time.Duration
	// MaximumConnections bounds the connections. When there are so many, the source address with the most loses its oldest.
	MaximumConnections int
	// Preferred reports whether a source loses its connections to other preferred ones only; nil: none does.
	Preferred func(netip.Addr) bool
}

// Serve serves on an address until the context ends.
func Serve(ctx context.Context, address string, handler http.Handler, config Config) error {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	return ServeListener(ctx, listener, handler, config)
}

// ServeListener serves on a listener until the context ends, and closes it.
func ServeListener(ctx context.Context, listener net.Listener, handler http.Handler, config Config) error {
	server := &http.Server{
		Handler: handler, ReadTimeout: RequestTimeout, WriteTimeout: config.WriteTimeout, IdleTimeout: IdleTimeout,
		MaxHeaderBytes: maximumHeader,
		// What a stranger sends must not fill the log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShutdownTimeout)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // its only error is that of the listener, which Shutdown has closed
		}
	})
	err := server.Serve(connlimit.New(listener, config.MaximumConnections, config.Preferred))
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}
