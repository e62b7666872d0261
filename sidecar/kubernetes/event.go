package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// maximumMessage is the documented limit of an Event's message, in bytes; an annotation's value may be far longer.
const maximumMessage = 1024

// EventType is the type of an Event.
type EventType string

// The types of Events.
const (
	EventNormal  EventType = "Normal"
	EventWarning EventType = "Warning"
)

// Event is an Event on the Cluster, as kubectl describe shows it.
type Event struct {
	// Type is Normal or Warning.
	Type EventType
	// Reason is one word in upper camel case, Message a sentence.
	Reason, Message string
}

// eventBody holds the fields of a core/v1 Event that we write.
type eventBody struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	InvolvedObject struct {
		APIVersion      string `json:"apiVersion"`
		Kind            string `json:"kind"`
		Namespace       string `json:"namespace"`
		Name            string `json:"name"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"involvedObject"`
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Source  struct {
		Component string `json:"component"`
		Host      string `json:"host"`
	} `json:"source"`
	ReportingComponent string    `json:"reportingComponent"`
	ReportingInstance  string    `json:"reportingInstance"`
	FirstTimestamp     time.Time `json:"firstTimestamp"`
	LastTimestamp      time.Time `json:"lastTimestamp"`
	Count              int       `json:"count"`
}

// Record writes an Event on the Cluster. Written again with the same time, it is still one Event: client-go's
// recorders, too, name an Event after its object and its time.
func (c *Client) Record(ctx context.Context, v View, e Event, at time.Time) error {
	body := eventBody{
		APIVersion: "v1", Kind: "Event", Type: string(e.Type), Reason: e.Reason, Message: shorten(e.Message),
		ReportingComponent: contract.FieldManager, ReportingInstance: c.identity.Pod,
		FirstTimestamp: at.UTC().Truncate(time.Second), LastTimestamp: at.UTC().Truncate(time.Second), Count: 1,
	}
	body.Metadata.Name, body.Metadata.Namespace = fmt.Sprintf("%s.%x", c.identity.Cluster, at.UnixNano()),
		c.identity.Namespace
	body.Source.Component, body.Source.Host = contract.FieldManager, c.identity.Pod
	object := &body.InvolvedObject
	object.APIVersion, object.Kind = c.identity.Group+"/"+c.identity.Version, "Cluster"
	object.Namespace, object.Name, object.UID, object.ResourceVersion = c.identity.Namespace, v.Name, v.UID,
		v.ResourceVersion
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode an Event: %w", err)
	}
	ctx, cancel := callContext(ctx)
	defer cancel()
	err = c.rest.Post().AbsPath("api", "v1", "namespaces", c.identity.Namespace, "events").
		VersionedParams(&metav1.CreateOptions{FieldManager: contract.FieldManager}, metav1.ParameterCodec).
		SetHeader("Content-Type", runtime.ContentTypeJSON).MaxRetries(0).Body(encoded).Do(ctx).Error()
	if err = classify(err); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create an Event: %w", err)
	}
	return nil
}

// shorten cuts a message at Kubernetes' limit, between two characters.
func shorten(message string) string {
	const cut = "…"
	if len(message) <= maximumMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maximumMessage-len(cut)], "") + cut
}
