package wake

import (
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// reconcileFenced deletes the pods of a fenced cluster that is to hibernate, because the operator deletes no fenced pod. It lifts the
// fence once they are gone, since otherwise PostgreSQL would not be started when a person wakes the cluster. It also lifts it where
// the Cluster no longer lists the plugin, because the sidecar has then lost the right to.
func (c *Controller) reconcileFenced(ctx context.Context, seen *snapshot, now time.Time) error {
	switch {
	case mustDeleteInstances(seen.view):
		return c.deleteInstances(ctx, seen, now)
	case mustLiftFence(seen.view):
		changes := map[string]*string{contract.AnnotationFencedInstances: nil, contract.AnnotationDozingSince: nil, contract.AnnotationPostgresStopped: nil}
		if seen.cluster.Annotations[contract.AnnotationPostgresStopped] == "" && !seen.view.Hibernated {
			delete(changes, contract.AnnotationDozingSince) // PostgreSQL may still stop, so clients are held if a person turns hibernation off
		}
		return c.unlessChanged(ctx, seen, changes)
	}
	return nil
}

// mustLiftFence reports whether the fence is to be lifted although no client has connected.
func mustLiftFence(view plan.Cluster) bool {
	asleep := view.Fenced && view.HibernationOn && view.Hibernated
	unlisted := view.Dozing && view.Stopped && !view.Listed
	// The operator hibernates only a healthy cluster, and a fenced one does not become healthy. If the hibernation is our own, the
	// sidecar withdraws it.
	waiting := view.Fenced && view.HibernationOn && !view.OwnsHibernation && view.WaitsForHealthy
	return (asleep || unlisted || waiting) && !view.Deleting
}

// mustDeleteInstances reports whether the plugin is to delete the instances' pods instead of the operator. The volumes must not be
// at risk when the pods are created again.
func mustDeleteInstances(view plan.Cluster) bool {
	return view.Fenced && view.HibernationOn && view.DeletingPods && !view.VolumesAtRisk && !view.Deleting
}

// deleteInstances deletes the instances' pods. It first reads the Cluster from the API server, since the informers may be late, and
// an instance that was woken meanwhile must not be deleted.
func (c *Controller) deleteInstances(ctx context.Context, seen *snapshot, now time.Time) error {
	pods, err := c.Informers.Pods(ctx, seen.name)
	if err != nil {
		return err
	}
	var left []corev1.Pod
	for i := range pods {
		if endpointslice.IsInstance(&pods[i]) && pods[i].DeletionTimestamp.IsZero() {
			left = append(left, pods[i])
		}
	}
	if len(left) == 0 {
		return nil
	}
	live, err := c.live(ctx, seen, now)
	if err != nil || !mustDeleteInstances(live) {
		return err
	}
	for i := range left {
		if err := c.deletePod(ctx, &left[i]); err != nil {
			return err
		}
		c.Logger.Info("a fenced instance of a cluster that hibernates is deleted", "namespace", seen.name.Namespace, "cluster", seen.name.Name, "pod", left[i].Name)
	}
	return nil
}

// live reads the Cluster from the API server. The result is empty if it has been replaced by another one of the same name.
func (c *Controller) live(ctx context.Context, seen *snapshot, now time.Time) (plan.Cluster, error) {
	var cluster cnpgv1.Cluster
	if err := c.APIReader.Get(ctx, seen.name, &cluster); err != nil {
		return plan.Cluster{}, fmt.Errorf("read Cluster %s: %w", seen.name, err)
	}
	if cluster.UID != seen.cluster.UID {
		return plan.Cluster{}, nil
	}
	return plan.View(&cluster, now), nil
}

// deletePod deletes this pod, but not a later one of the same name.
func (c *Controller) deletePod(ctx context.Context, pod *corev1.Pod) error {
	err := c.Client.Delete(ctx, &corev1.Pod{ObjectMeta: pod.ObjectMeta}, client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
