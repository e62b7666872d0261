// Package events writes Events about Clusters. An Event's name is derived from its reason and occasion, so there is
// only one, however many replicas write it, and however often.
package events

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Writer writes for one replica. It must not be copied.
type Writer struct {
	Client client.Client
	// Pod is the replica's name.
	Pod string

	written keyed.Map[key, written] // the last Event
}

type key struct {
	cluster types.NamespacedName
	reason  string
}

type written struct {
	occasion string
	at       time.Time
}

// keptFor is how long the API server keeps an Event by default (--event-ttl). After that it is written anew, if there
// is still reason to.
const keptFor = time.Hour

// Forget drops what is known about a Cluster.
func (w *Writer) Forget(cluster types.NamespacedName) {
	w.written.DeleteFunc(func(of key, _ written) bool { return of.cluster == cluster })
}

// Write writes the Event, unless there is one of the same reason and occasion already, or the namespace is being
// deleted and takes none.
func (w *Writer) Write(ctx context.Context, cluster *cnpgv1.Cluster, e plan.Event, now time.Time) error {
	of, occasion := key{client.ObjectKeyFromObject(cluster), e.Reason}, string(cluster.UID)+" "+e.Occasion
	if last := w.written.Get(of); last.occasion == occasion && now.Sub(last.at) < keptFor {
		return nil
	}
	kind, err := KindOf(cluster, w.Client)
	if err != nil {
		return err
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(occasion))
	at := metav1.NewTime(now)
	err = w.Client.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace,
			Name:      cluster.Name + "." + strings.ToLower(e.Reason) + "-" + strconv.FormatUint(hash.Sum64(), 36),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: cluster.Namespace, Name: cluster.Name,
			UID:             cluster.UID,
			ResourceVersion: cluster.ResourceVersion,
		},
		Type:   map[bool]string{false: corev1.EventTypeNormal, true: corev1.EventTypeWarning}[e.Warning],
		Reason: e.Reason, Message: e.Message,
		Source: corev1.EventSource{Component: contract.FieldManager, Host: w.Pod}, ReportingController: contract.FieldManager,
		ReportingInstance: w.Pod, FirstTimestamp: at, LastTimestamp: at, Count: 1,
	})
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return fmt.Errorf("create an Event on Cluster %s: %w", cluster.Name, err)
	}
	w.written.Set(of, written{occasion, now})
	return nil
}

// KindOf is what the API server calls a Cluster; builds of the operator may have an API group of their own.
func KindOf(cluster *cnpgv1.Cluster, c client.Client) (schema.GroupVersionKind, error) {
	kind, err := apiutil.GVKForObject(cluster, c.Scheme())
	if err != nil {
		return kind, fmt.Errorf("tell what kind a Cluster is: %w", err)
	}
	return kind, nil
}
