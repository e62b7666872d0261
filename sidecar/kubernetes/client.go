// Package kubernetes is the sidecar's hold on the API server: it watches its own Cluster, turns the operator's switch on,
// suspends and resumes the cluster's ScheduledBackups, and writes Events.
//
// It uses the REST client of client-go and decodes only the fields it needs: the typed and the dynamic clients cost
// several MiB of memory in every PostgreSQL pod.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	// FieldManager owns what the instances write.
	FieldManager = "cnpg-i-scale-to-zero"
	// callTimeout bounds every call but the watch: while one waits, nobody looks at the database.
	callTimeout = 3 * time.Second
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
	// resources serves the group of CloudNativePG, core the group of Events.
	resources, core rest.Interface
	logger          *slog.Logger
}

// New makes a client; it does not connect.
func New(config *rest.Config, identity Identity, logger *slog.Logger) (*Client, error) {
	resources, err := restClient(config, schema.GroupVersion{Group: identity.Group, Version: identity.Version}, "/apis")
	if err != nil {
		return nil, err
	}
	core, err := restClient(config, schema.GroupVersion{Version: "v1"}, "/api")
	if err != nil {
		return nil, err
	}
	return &Client{identity: identity, resources: resources, core: core, logger: logger}, nil
}

func restClient(config *rest.Config, version schema.GroupVersion, path string) (rest.Interface, error) {
	// The scheme knows Status and nothing else, so that errors of the API server keep their type.
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, path
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.UserAgent = FieldManager
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", version, err)
	}
	return client, nil
}

// list reads all objects of a resource of the namespace.
func (c *Client) list(ctx context.Context, resource string, selector string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request := c.resources.Get().Namespace(c.identity.Namespace).Resource(resource)
	if selector != "" {
		request = request.Param("fieldSelector", selector)
	}
	body, err := request.Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	return body, nil
}

// patch applies a JSON merge patch. A resourceVersion in it makes it fail with ErrConflict if the object has changed.
func (c *Client) patch(ctx context.Context, resource, name string, patch []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.resources.Patch(types.MergePatchType).Namespace(c.identity.Namespace).Resource(resource).Name(name).
		Param("fieldManager", FieldManager).Body(patch).Do(ctx).Raw()
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("patch %s %s: %w", resource, name, ErrConflict)
	case err != nil:
		return fmt.Errorf("patch %s %s: %w", resource, name, err)
	default:
		return nil
	}
}
