// Package httpserver serves pages to anybody who can reach the pod. No client can block the server, be it by silence,
// by many connections or by its requests. [NewListener] keeps a server of another protocol from being blocked by many
// connections.
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
)

const (
	// requestTimeout bounds the time to read a request.
	requestTimeout = 5 * time.Second
	// idleTimeout is longer than Prometheus' usual intervals, so that a scraper keeps its connection.
	idleTimeout = time.Minute
	// shutdownTimeout is how long running requests may take after the context has ended.
	shutdownTimeout = time.Second
	// maximumHeader, in bytes, is many times what a scraper sends.
	maximumHeader = 8 << 10
)

// Config holds the settings that differ between servers.
type Config struct {
	// WriteTimeout bounds the time to write a response.
	WriteTimeout time.Duration
	// MaximumConnections limits the connections. At the limit, the source address with the most loses its oldest.
	MaximumConnections int
	// Preferred reports whether a source loses connections only to other preferred ones; nil means that none is
	// preferred.
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

// ServeListener serves on a listener until the context ends, and closes the listener.
func ServeListener(ctx context.Context, listener net.Listener, handler http.Handler, config Config) error {
	server := &http.Server{
		Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: config.WriteTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maximumHeader,
		// Bad requests of strangers must not fill the log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // the only error is that of the listener, which Shutdown has closed
		}
	})
	err := server.Serve(NewListener(listener, config.MaximumConnections, config.Preferred))
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}
