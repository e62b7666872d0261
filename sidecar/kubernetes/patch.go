package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// errNoVersion keeps a patch from being sent without its precondition.
var errNoVersion = errors.New("the object's resourceVersion is not known")

// patch is the body of a JSON merge patch. The resourceVersion makes it fail if the object has changed since it was read.
type patch struct {
	Metadata patchMetadata `json:"metadata"`
	Spec     *suspension   `json:"spec,omitempty"`
}

type patchMetadata struct {
	ResourceVersion string `json:"resourceVersion"`
	// Annotations maps to nil what is to be removed.
	Annotations map[string]*string `json:"annotations"`
}

type suspension struct {
	Suspend bool `json:"suspend"`
}

// apply applies a patch; it fails with [ErrConflict] if the object is no longer the one that was read.
func (c *Client) apply(ctx context.Context, resource, name string, p patch) error {
	if p.Metadata.ResourceVersion == "" {
		return fmt.Errorf("patch %s %s: %w", resource, name, errNoVersion)
	}
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the patch of %s %s: %w", resource, name, err)
	}
	_, err = c.read(ctx, call{
		method: http.MethodPatch, url: c.resource(resource, name), query: url.Values{"fieldManager": {FieldManager}},
		contentType: "application/merge-patch+json", body: body,
	})
	if err != nil {
		return fmt.Errorf("patch %s %s: %w", resource, name, err)
	}
	return nil
}

// Hibernate turns the switch on and says why and since when, in one patch that fails with [ErrConflict] if the Cluster is
// no longer the one of the view.
func (c *Client) Hibernate(ctx context.Context, v View, at time.Time, reason string) error {
	on, since := "on", at.UTC().Format(time.RFC3339)
	return c.apply(ctx, "clusters", c.identity.Cluster, patch{Metadata: patchMetadata{
		ResourceVersion: v.ResourceVersion,
		Annotations: map[string]*string{
			idle.KeyHibernation: &on, idle.KeyAsleepSince: &since, idle.KeyAsleepReason: &reason, idle.KeyAnnounced: nil,
			idle.KeySleepRequested: nil, // it is fulfilled, and must not outlast a wake
		},
	}})
}

// Withdraw turns off the switch that we turned on. It fails with [ErrConflict] if the Cluster is no longer the one of the
// view: the operator may have begun to delete pods.
func (c *Client) Withdraw(ctx context.Context, v View) error {
	return c.apply(ctx, "clusters", c.identity.Cluster, patch{Metadata: patchMetadata{
		ResourceVersion: v.ResourceVersion,
		Annotations: map[string]*string{
			idle.KeyHibernation: nil, idle.KeyAsleepSince: nil, idle.KeyAsleepReason: nil,
		},
	}})
}

// Annotate sets an annotation of the Cluster, or removes it if the value is nil. It fails with [ErrConflict] if the Cluster
// is no longer the one of the view.
func (c *Client) Annotate(ctx context.Context, v View, key string, value *string) error {
	return c.apply(ctx, "clusters", c.identity.Cluster, patch{Metadata: patchMetadata{
		ResourceVersion: v.ResourceVersion, Annotations: map[string]*string{key: value},
	}})
}
