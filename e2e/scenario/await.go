package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrSlept means that a cluster that had to stay awake was put to sleep, or was about to be.
var ErrSlept = errors.New("the cluster was put to sleep, or its sleep was announced")

// AwaitCluster is Await for a Cluster.
func (k *Kubernetes) AwaitCluster(
	ctx context.Context, c *cnpgv1.Cluster, what string, within time.Duration, ok func(*cnpgv1.Cluster) bool,
) (time.Time, error) {
	return Await(ctx, k, c, what, within, ok)
}

// Ready reports whether the pod is ready.
func Ready(p *corev1.Pod) bool { return Is(p, corev1.PodReady) }

// Is reports whether the pod has a condition.
func Is(p *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}

// AwaitEvent waits for an Event about the cluster with the given reason, and returns its message.
func (k *Kubernetes) AwaitEvent(
	ctx context.Context, c *cnpgv1.Cluster, reason string, within time.Duration,
) (string, error) {
	event, err := k.AwaitEventSaying(ctx, c, reason, "", within)
	return event.Message, err
}

// AwaitEventSaying is AwaitEvent for one whose message contains the words.
func (k *Kubernetes) AwaitEventSaying(
	ctx context.Context, c *cnpgv1.Cluster, reason, words string, within time.Duration,
) (corev1.Event, error) {
	limited, cancel := context.WithTimeoutCause(ctx, within,
		fmt.Errorf("no Event %s about cluster %s that says %q within %s", reason, c.Name, words, within))
	defer cancel()
	selector := fields.Set{"involvedObject.name": c.Name, "reason": reason}.AsSelector()
	var said corev1.Event
	err := k.follow(limited, &corev1.EventList{}, c.Namespace, selector, func(event watch.Event) bool {
		found, is := event.Object.(*corev1.Event)
		if !is || event.Type == watch.Deleted || !strings.Contains(found.Message, words) {
			return false
		}
		said = *found
		return true
	})
	return said, err
}

// Await waits until the object satisfies the condition and returns when that was observed. It keeps last up to date with the API
// server's state.
func Await[T client.Object](
	ctx context.Context, k *Kubernetes, last T, what string, within time.Duration, ok func(T) bool,
) (time.Time, error) {
	limited, cancel := context.WithTimeoutCause(ctx, within,
		fmt.Errorf("%T %s/%s is not %s after %s", last, last.GetNamespace(), last.GetName(), what, within))
	defer cancel()
	list, err := k.listOf(last)
	if err != nil {
		return time.Time{}, err
	}
	selector := fields.OneTermEqualSelector("metadata.name", last.GetName())
	var at time.Time
	err = k.follow(limited, list, last.GetNamespace(), selector, func(event watch.Event) bool {
		seen, is := event.Object.(T)
		if !is || event.Type == watch.Deleted || !ok(seen) {
			return false
		}
		at = time.Now()
		return true
	})
	if err != nil {
		return at, err
	}
	return at, k.Get(ctx, client.ObjectKeyFromObject(last), last)
}

// listOf is an empty list of the object's kind.
func (k *Kubernetes) listOf(object client.Object) (client.ObjectList, error) {
	kind, err := k.GroupVersionKindFor(object)
	if err != nil {
		return nil, fmt.Errorf("find the kind of a %T: %w", object, err)
	}
	list, err := k.Scheme().New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err != nil {
		return nil, fmt.Errorf("make a list of %s: %w", kind.Kind, err)
	}
	return list.(client.ObjectList), nil
}

// AwaitGone waits until no object of the list's kind matches.
func (k *Kubernetes) AwaitGone(
	ctx context.Context, list client.ObjectList, namespace, name string, within time.Duration,
) error {
	limited, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%T %s/%s is still there after %s", list, namespace, name, within))
	defer cancel()
	selector := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", name)}
	for {
		present := list.DeepCopyObject().(client.ObjectList)
		if err := k.List(ctx, present, client.InNamespace(namespace), selector); err != nil {
			return fmt.Errorf("list %s: %w", name, err)
		}
		if meta.LenList(present) == 0 {
			return nil
		}
		if err := Rest(limited, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// follow passes every event to done until it returns true, beginning with the current state, and reopens a watch that ends. The state
// is listed: a watch without a resourceVersion begins with the API server's cache, which may not have the caller's last change yet.
func (k *Kubernetes) follow(
	ctx context.Context, list client.ObjectList, namespace string, selector fields.Selector, done func(watch.Event) bool,
) error {
	for {
		finished, err := k.followOnce(ctx, list, namespace, selector, done)
		if finished {
			return nil
		}
		if err != nil {
			_ = Rest(ctx, 500*time.Millisecond) // tests take the API server away on purpose
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Rest waits, unless the context ends before.
func Rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// followOnce is follow until the watch ends, and reports whether done returned true.
func (k *Kubernetes) followOnce(
	ctx context.Context, list client.ObjectList, namespace string, selector fields.Selector, done func(watch.Event) bool,
) (bool, error) {
	present, chosen := list.DeepCopyObject().(client.ObjectList), client.MatchingFieldsSelector{Selector: selector}
	if err := k.List(ctx, present, client.InNamespace(namespace), chosen); err != nil {
		return false, fmt.Errorf("list %s: %w", selector, err)
	}
	items, err := meta.ExtractList(present)
	if err != nil {
		return false, fmt.Errorf("read the list of %s: %w", selector, err)
	}
	if slices.ContainsFunc(items, func(item runtime.Object) bool { return done(watch.Event{Type: watch.Added, Object: item}) }) {
		return true, nil
	}
	since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: present.GetResourceVersion()}}
	stream, err := k.Watch(ctx, list.DeepCopyObject().(client.ObjectList), client.InNamespace(namespace), chosen, since)
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", selector, err)
	}
	defer stream.Stop()
	defer context.AfterFunc(ctx, stream.Stop)()
	for event := range stream.ResultChan() {
		if event.Type == watch.Error {
			return false, nil
		}
		if done(event) {
			return true, nil
		}
	}
	return false, nil
}

// AwaitDeployment waits until the Deployment has rolled out its template.
func (k *Kubernetes) AwaitDeployment(ctx context.Context, namespace, name string, within time.Duration) error {
	deployment := &appsv1.Deployment{}
	deployment.Namespace, deployment.Name = namespace, name
	_, err := Await(ctx, k, deployment, "rolled out", within, func(d *appsv1.Deployment) bool {
		want := *d.Spec.Replicas
		return d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas == want &&
			d.Status.Replicas == want && d.Status.ReadyReplicas == want && d.Status.AvailableReplicas == want
	})
	return err
}
