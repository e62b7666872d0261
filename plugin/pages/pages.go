// Package pages serves the plugin's metrics and probes over HTTP. Anybody who can reach the pod may read them, but must not be
// able to lock out Prometheus or the kubelet: a kubelet without an answer restarts the pod.
package pages

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cnpg-i/scale-to-zero/sidecar/httpserver"
)

// config limits what strangers can use.
func config() httpserver.Config {
	return httpserver.Config{
		WriteTimeout: 15 * time.Second, // for the page of a large fleet over a slow line
		// Many times what scrapers and the kubelet need.
		MaximumConnections: 64,
	}
}

// Handler serves /metrics, /healthz, /readyz, which fails until the plugin is ready, and /peer, which tells other replicas whether this
// one can serve clients. The last is not for the kubelet: while the API server answers nobody, no replica can, and the operator needs them.
func Handler(metrics prometheus.Gatherer, ready, stale func() bool) http.Handler {
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

// Serve serves the pages until the context ends.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	return httpserver.Serve(ctx, address, handler, config())
}
