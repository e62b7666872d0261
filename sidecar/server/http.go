package server

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cnpg-i/scale-to-zero/sidecar/clientaddr"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

const (
	// writeTimeout is within what time a page must have been read.
	writeTimeout = 5 * time.Second
	// maximumConnections bounds the memory that strangers can take, at some 10 KiB a connection: a sidecar that is killed
	// for want of memory makes the pod not ready.
	maximumConnections = 32
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
	return httpserver.Serve(ctx, address, handler, config(isInstance))
}

func config(isInstance func(netip.Addr) bool) httpserver.Config {
	return httpserver.Config{WriteTimeout: writeTimeout, MaximumConnections: maximumConnections, Preferred: isInstance}
}
