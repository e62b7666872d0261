// Package kubernetes is the sidecar's access to the API server: it watches its own Cluster, turns hibernation on and
// off, suspends and resumes the cluster's ScheduledBackups, and writes Events.
//
// It uses client-go's REST client and Reflector with partial types, which have only the fields that it needs: what they
// do not name is not decoded. The typed clients would link every type of Kubernetes into each PostgreSQL pod, and the
// dynamic client decodes whole objects.
package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// callTimeout bounds every call but the watch.
	callTimeout = 5 * time.Second
	// requestsPerSecond and burst limit the requests of one sidecar. At rest it makes one every few minutes; the burst
	// lets a cluster with thirty ScheduledBackups be put to sleep without throttling between the last sample and the
	// hibernation patch.
	requestsPerSecond, burst = 10, 50
)

// Identity identifies the sidecar's cluster and pod.
type Identity struct {
	// Namespace, Cluster and Pod are names; PodUID is the pod's UID.
	Namespace, Cluster, Pod, PodUID string
	// Group and Version are those of the Cluster resource: some builds of the operator use their own.
	Group, Version string
}

func (i Identity) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: i.Group, Version: i.Version}
}

// Client makes the sidecar's requests to the API server.
type Client struct {
	identity Identity
	rest     *rest.RESTClient
	logger   *slog.Logger
	backoff  wait.Backoff
	// countsRefused says that a hibernation with counts was refused, perhaps because of them.
	countsRefused atomic.Bool
}

// Connect makes a client, which connects with its first request.
func Connect(endpoint Endpoint, identity Identity, logger *slog.Logger) (*Client, error) {
	config := configure(endpoint, identity)
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the transport to the API server: %w", err)
	}
	return newClient(config, transport, identity, logger)
}

func configure(endpoint Endpoint, identity Identity) *rest.Config {
	version := identity.groupVersion()
	return &rest.Config{
		Host: endpoint.URL, APIPath: "/apis",
		ContentConfig: rest.ContentConfig{
			GroupVersion: &version, ContentType: runtime.ContentTypeJSON,
			NegotiatedSerializer: serializer.NewCodecFactory(newScheme(version)).WithoutConversion(),
		},
		BearerTokenFile: endpoint.TokenFile,
		TLSClientConfig: rest.TLSClientConfig{CAFile: endpoint.CAFile},
		UserAgent:       contract.FieldManager,
		QPS:             requestsPerSecond, Burst: burst,
		// Answers are small compared with the buffers of a decompressor.
		DisableCompression: true,
	}
}

func newClient(config *rest.Config, transport *http.Client, identity Identity, logger *slog.Logger) (*Client, error) {
	// A redirect could leak the token.
	transport.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, fmt.Errorf("make the client of the API server: %w", err)
	}
	return &Client{identity: identity, rest: client, logger: logger, backoff: watchBackoff()}, nil
}

// withoutLog silences client-go's own logging: it also returns the errors, and logs them in another format.
func withoutLog(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// callContext returns the context of one call.
func callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(withoutLog(ctx), callTimeout)
}

// read starts a GET request for a resource in the namespace.
func (c *Client) read(resource string) *rest.Request {
	return c.rest.Get().Namespace(c.identity.Namespace).Resource(resource)
}

// list is read with list or watch options.
func (c *Client) list(resource string, options *metav1.ListOptions) *rest.Request {
	return c.read(resource).VersionedParams(options, metav1.ParameterCodec)
}
