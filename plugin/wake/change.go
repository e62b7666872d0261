package wake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

func (a *Access) log(ctx context.Context, seen *snapshot, what string, warns bool, more ...any) {
	level := map[bool]slog.Level{false: slog.LevelInfo, true: slog.LevelWarn}[warns]
	a.Logger.With("namespace", seen.name.Namespace, "cluster", seen.name.Name).Log(ctx, level, what, more...) //nolint:sloglint // the plan's reasons are constants
}

// change patches the Cluster's annotations with an optimistic lock, and returns the Events to write afterwards. Changes
// share one patch, but one with a First Event waits for the reconciliation that the patch of the others triggers,
// because the API server may reject that Event for what tenants have written.
func (c *Controller) change(ctx context.Context, seen *snapshot, changes []plan.Change, now time.Time) (follow []plan.Event, failed error) {
	written := slices.DeleteFunc(slices.Clone(changes), func(change plan.Change) bool { return change.First != nil })
	if len(written) == 0 {
		written = changes
	}
	annotations := map[string]*string{}
	for _, change := range written {
		if change.First != nil {
			if err := c.Events.Write(ctx, seen.cluster, *change.First, now); err != nil {
				return nil, err
			}
		}
		maps.Copy(annotations, change.Annotations)
	}
	if len(annotations) == 0 {
		return nil, nil
	}
	if err := waker.Annotate(ctx, c.Client, seen.cluster, annotations); err != nil {
		return nil, ignoreConflict(err)
	}
	for _, change := range written {
		c.log(ctx, seen, change.Why, change.Warns)
		if change.Then != nil {
			follow = append(follow, *change.Then)
		}
	}
	return follow, nil
}

// tell writes Events, and returns those that could not be written and that no later plan has.
func (c *Controller) tell(ctx context.Context, seen *snapshot, all []plan.Event, now time.Time) (unwritten []plan.Event, failed error) {
	for _, event := range all {
		if err := c.Events.Write(ctx, seen.cluster, event, now); err != nil {
			failed = errors.Join(failed, err)
			if event.Once {
				unwritten = append(unwritten, event)
			}
		}
	}
	return unwritten, failed
}

// deletePods deletes pods if the plan for the Cluster that the API server has says so too: the informers may be late,
// and an instance that was woken meanwhile must not be deleted.
func (c *Controller) deletePods(ctx context.Context, seen *snapshot, pods []plan.Deletion, now time.Time) error {
	if len(pods) == 0 {
		return nil
	}
	var live cnpgv1.Cluster
	if err := c.APIReader.Get(ctx, seen.name, &live); err != nil {
		return fmt.Errorf("read Cluster %s: %w", seen.name, err)
	}
	if live.UID != seen.cluster.UID {
		return nil
	}
	state := seen.state
	state.Cluster, state.Annotations, state.Primary = plan.View(&live, now), live.Annotations, live.Status.CurrentPrimary
	still := plan.Decide(state, now).Delete
	for _, pod := range pods {
		if !slices.Contains(still, pod) {
			continue
		}
		meta := metav1.ObjectMeta{Namespace: seen.name.Namespace, Name: pod.Name, UID: pod.UID}
		err := c.Client.Delete(ctx, &corev1.Pod{ObjectMeta: meta}, client.Preconditions{UID: &pod.UID}) // not a later one of the same name
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s/%s: %w", meta.Namespace, meta.Name, err)
		}
		c.log(ctx, seen, pod.Why, pod.Warns, "pod", pod.Name)
	}
	return nil
}

// ignoreConflict returns nil for a conflict, because the other change triggers a reconciliation.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
