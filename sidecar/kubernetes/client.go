// Package kubernetes is the sidecar's hold on the API server: it watches its own Cluster, turns the operator's switch on,
// suspends and resumes the cluster's ScheduledBackups, and writes Events.
//
// Of client-go it uses the transport: TLS, the token that kubelet renews, and the check that a silent connection still
// lives. The seven requests it makes are written out here, and only the fields it needs are decoded. The REST, dynamic and
// typed clients bring the API machinery with them, which every PostgreSQL pod would pay for with some 3 MiB of memory and
// 3 MB of program.
package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/transport"
)

const (
	// FieldManager owns what the instances write.
	FieldManager = "cnpg-i-scale-to-zero"
	// requestsPerSecond and burst bound the requests of one sidecar. At rest it makes one in five minutes; the burst lets
	// a cluster with thirty ScheduledBackups be put to sleep without a wait between the last look and the switch.
	requestsPerSecond, burst = 10, 50
)

// ErrConflict says that an object has changed since it was read.
var ErrConflict = errors.New("the object has changed meanwhile")

// Identity says whose sidecar this is.
type Identity struct {
	// Namespace, Cluster and Pod are names; PodUID is the pod's UID.
	Namespace, Cluster, Pod, PodUID string
	// Group and Version are those of the Cluster resource: builds of the operator may have their own.
	Group, Version string
}

// Client reads and writes what the sidecar may.
type Client struct {
	identity Identity
	base     *url.URL
	http     *http.Client
	limiter  *rate.Limiter
	logger   *slog.Logger
	retry    retry
}

// retry spaces the tries to watch.
type retry struct {
	// first and last bound the wait before another try; settled is for how long a watch must have gone well for the next
	// wait to be the first again.
	first, last, settled time.Duration
}

// Connect makes a client; it does not connect before the first request.
func Connect(endpoint Endpoint, identity Identity, logger *slog.Logger) (*Client, error) {
	base, err := url.Parse(endpoint.URL)
	if err != nil {
		return nil, fmt.Errorf("parse the API server's URL: %w", err)
	}
	tripper, err := transport.New(&transport.Config{
		UserAgent:       FieldManager,
		TLS:             transport.TLSConfig{CAFile: endpoint.CAFile},
		BearerTokenFile: endpoint.TokenFile,
		// Answers are small, and the buffers of a decompressor are not.
		DisableCompression: true,
	})
	if err != nil {
		return nil, fmt.Errorf("make the transport to the API server: %w", err)
	}
	return newClient(base, tripper, identity, logger), nil
}

func newClient(base *url.URL, tripper http.RoundTripper, identity Identity, logger *slog.Logger) *Client {
	return &Client{
		identity: identity,
		base:     base,
		http: &http.Client{
			Transport:     tripper,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		limiter: rate.NewLimiter(requestsPerSecond, burst),
		logger:  logger,
		retry:   retry{first: 500 * time.Millisecond, last: 10 * time.Second, settled: 10 * time.Second},
	}
}

// resource is the URL of a resource of CloudNativePG in the namespace, or of one object of it.
func (c *Client) resource(plural string, name ...string) *url.URL {
	path := append([]string{"apis", c.identity.Group, c.identity.Version, "namespaces", c.identity.Namespace, plural}, name...)
	return c.base.JoinPath(path...)
}
