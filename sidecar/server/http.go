package server

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
)

const (
	// writeTimeout is how long a client may take to read a page.
	writeTimeout = 5 * time.Second
	// maximumConnections limits the memory that strangers can use, at some 10 KiB a connection: a sidecar killed for
	// lack of memory makes the pod not ready.
	maximumConnections = 32
)

// Sampler samples the instance on demand.
type Sampler interface {
	// SampleFor samples the instance and reports whether the asker is allowed to request that. The sample begins after
	// the call.
	SampleFor(ctx context.Context, asker netip.Addr) bool
}

// Handler serves the pages, accepts client addresses, samples the instance for the other instances, and answers whether
// the password of a role has been set.
func (m *Metrics) Handler(
	cluster, pod string, clientAddrs *monitor.ClientAddrs, sampler Sampler,
	passwordSet func(ctx context.Context, role string) (bool, error),
) http.Handler {
	mux := http.NewServeMux()
	// Compression would need buffers many times the size of the page. Only connections are limited, not requests in
	// flight: a few clients that never read would use up that limit.
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
			http.Error(w, "cannot encode the report", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	mux.HandleFunc("POST "+contract.PathClientAddress, func(w http.ResponseWriter, r *http.Request) {
		addClientAddr(w, r, clientAddrs)
	})
	mux.HandleFunc("GET "+contract.PathPasswordSet, passwordHandler(passwordSet))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}

// sampleFor samples the instance if the request asks for it, and returns the nonce for the answer. ok reports whether
// the sender is allowed to make the request.
func sampleFor(r *http.Request, sampler Sampler) (nonce string, ok bool) {
	nonce = r.URL.Query().Get(contract.QueryParameterSample)
	if nonce == "" {
		return "", true
	}
	asker, err := netip.ParseAddrPort(r.RemoteAddr)
	return nonce, err == nil && sampler.SampleFor(r.Context(), asker.Addr().Unmap().WithZone(""))
}

// addClientAddr records the client of the sender's next connection to PostgreSQL.
func addClientAddr(w http.ResponseWriter, r *http.Request, clientAddrs *monitor.ClientAddrs) {
	sender, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, "the sender has no address", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, contract.MaxClientAddressBytes+1))
	if err != nil {
		http.Error(w, "cannot read the client address", http.StatusBadRequest)
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

// Serve serves the pages until the context ends, then gives running requests a second to finish. isInstance reports
// whether an address is that of an instance of the cluster, whose connections are never displaced by those of other
// sources.
func Serve(ctx context.Context, address string, handler http.Handler, isInstance func(netip.Addr) bool) error {
	return httpserver.Serve(ctx, address, handler, config(isInstance))
}

func config(isInstance func(netip.Addr) bool) httpserver.Config {
	return httpserver.Config{WriteTimeout: writeTimeout, MaximumConnections: maximumConnections, Preferred: isInstance}
}
