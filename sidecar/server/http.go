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

	"github.com/cnpg-i/scale-to-zero/sidecar/clientaddr"
	"github.com/cnpg-i/scale-to-zero/sidecar/connlimit"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Limits of the HTTP server: whoever reaches the pod may ask it, and nobody may tie it up.
const (
	requestTimeout = 5 * time.Second
	// idleTimeout is longer than Prometheus' usual interval of 30 s, so that a scraper keeps its connection.
	idleTimeout = time.Minute
	// maximumHeader, in bytes, is many times what a scraper sends.
	maximumHeader = 8 << 10
	// maximumConnections bounds the memory that strangers can take, at some 10 KiB a connection: a sidecar that is killed
	// for want of memory makes the pod not ready. When there are so many, the source address with the most loses its oldest.
	maximumConnections = 32
	// shutdownTimeout is how long a page that is being sent may go on when the worker ends.
	shutdownTimeout = time.Second
)

// Sampler samples the instance on demand.
type Sampler interface {
	// SampleFor samples the instance for the asker and reports whether it may ask. The sample begins after the call.
	SampleFor(ctx context.Context, asker netip.Addr) bool
}

// Handler serves the pages, takes client addresses in, and has the instance sampled for the others.
func (m *Metrics) Handler(cluster, pod string, clientAddrs *clientaddr.Table, sampler Sampler) http.Handler {
	mux := http.NewServeMux()
	// Compression would keep buffers of many times the size of the page. There is no limit of requests in flight beside that
	// of connections, which a few readers who never read would use up.
	options := promhttp.HandlerOpts{DisableCompression: true}
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, options))
	mux.HandleFunc("GET "+contract.PathActivity, func(w http.ResponseWriter, r *http.Request) {
		nonce, ok := sampleFor(r, sampler)
		if !ok {
			http.Error(w, "only instances of the cluster may ask for a sample", http.StatusForbidden)
			return
		}
		report := m.Report(cluster, pod)
		report.Nonce = nonce
		body, err := contract.EncodeReport(report)
		if err != nil {
			http.Error(w, "the report cannot be encoded", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	mux.HandleFunc("POST "+contract.PathClientAddress, func(w http.ResponseWriter, r *http.Request) {
		addClientAddr(w, r, clientAddrs)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}

// sampleFor samples the instance if the request asks for that, and returns the nonce to answer with. ok reports whether the
// sender may ask for what it asks.
func sampleFor(r *http.Request, sampler Sampler) (nonce string, ok bool) {
	nonce = r.URL.Query().Get(contract.ParameterSample)
	if nonce == "" {
		return "", true
	}
	asker, err := netip.ParseAddrPort(r.RemoteAddr)
	return nonce, err == nil && sampler.SampleFor(r.Context(), asker.Addr().Unmap().WithZone(""))
}

// addClientAddr takes in for whom the sender's next connection to PostgreSQL speaks.
func addClientAddr(w http.ResponseWriter, r *http.Request, clientAddrs *clientaddr.Table) {
	sender, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "the sender has no address", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, contract.MaximumClientAddress+1))
	if err != nil {
		http.Error(w, "the client address cannot be read", http.StatusBadRequest)
		return
	}
	i, err := contract.DecodeClientAddress(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	clientAddrs.Add(sender.Addr(), i)
	w.WriteHeader(http.StatusNoContent)
}

// Serve serves the pages until the context ends, and then lets what is being sent finish for a second. isInstance reports
// whether an address is that of an instance of the cluster, which loses its connections to no other source.
func Serve(ctx context.Context, address string, handler http.Handler, isInstance func(netip.Addr) bool) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	return serve(ctx, listener, handler, isInstance)
}

// serve serves on a listener, which it closes.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, isInstance func(netip.Addr) bool) error {
	server := &http.Server{
		Handler: handler, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maximumHeader,
		// What a stranger sends must not fill the log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // its only error is that of the listener, which Shutdown has closed
		}
	})
	err := server.Serve(connlimit.New(listener, maximumConnections, isInstance))
	if !stop() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}
