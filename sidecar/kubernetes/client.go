// Package kubernetes is the sidecar's access to the API server: it watches its own Cluster, turns the operator's switch on,
// suspends and resumes the cluster's ScheduledBackups, and writes Events.
//
// It is client-go's REST client and Reflector over the partial kinds of package api. The typed clients would bring every kind
// of Kubernetes into each PostgreSQL pod, and the dynamic client decodes whole objects.
package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
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
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes/api"
)

const (
	// callTimeout bounds every call but the watch.
	callTimeout = 5 * time.Second
	// requestsPerSecond and burst bound the requests of one sidecar. At rest it makes one in some minutes; the burst lets a
	// cluster with thirty ScheduledBackups be put to sleep without a wait between the last sample and the switch.
	requestsPerSecond, burst = 10, 50
)

// Identity says whose sidecar this is.
type Identity struct {
	// Namespace, Cluster and Pod are names; PodUID is the pod's UID.
	Namespace, Cluster, Pod, PodUID string
	// Group and Version are those of the Cluster resource: builds of the operator may have their own.
	Group, Version string
}

func (i Identity) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: i.Group, Version: i.Version}
}

// Client reads and writes what the sidecar may.
type Client struct {
	identity Identity
	rest     *rest.RESTClient
	logger   *slog.Logger
	backoff  wait.Backoff
}

// Connect makes a client; it does not connect before the first request.
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
			NegotiatedSerializer: serializer.NewCodecFactory(api.NewScheme(version)).WithoutConversion(),
		},
		BearerTokenFile: endpoint.TokenFile,
		TLSClientConfig: rest.TLSClientConfig{CAFile: endpoint.CAFile},
		UserAgent:       contract.FieldManager,
		QPS:             requestsPerSecond, Burst: burst,
		// Answers are small, and the buffers of a decompressor are not.
		DisableCompression: true,
	}
}

func newClient(config *rest.Config, transport *http.Client, identity Identity, logger *slog.Logger) (*Client, error) {
	// A redirect would carry the token away.
	transport.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, fmt.Errorf("make the client of the API server: %w", err)
	}
	return &Client{identity: identity, rest: client, logger: logger, backoff: watchBackoff()}, nil
}

// withoutLog silences what client-go logs besides returning it, in a format of its own.
func withoutLog(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// callContext is the context of one call.
func callContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(withoutLog(ctx), callTimeout)
}

// read begins the reading of a resource in the namespace.
func (c *Client) read(resource string) *rest.Request {
	return c.rest.Get().Namespace(c.identity.Namespace).Resource(resource)
}

// list is read with the options of a list or a watch.
func (c *Client) list(resource string, options *metav1.ListOptions) *rest.Request {
	return c.read(resource).VersionedParams(options, metav1.ParameterCodec)
}
