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

// tendFenced does for a cluster that we have fenced what nobody else does. The operator that is to hibernate it wants its pods gone,
// but deletes none that is fenced. Once they are gone, so must the fence be: a person who wakes the cluster would get a PostgreSQL
// that is not started. And where the plugin is not listed any more, the sidecar has lost the right to lift it.
func (c *Controller) tendFenced(ctx context.Context, seen *snapshot, now time.Time) error {
	if seen.cluster == nil {
		return nil
	}
	switch view := plan.View(seen.cluster, now); {
	case deletes(view):
		return c.deleteInstances(ctx, seen, now)
	case lifts(view):
		return c.unlessChanged(ctx, seen, map[string]*string{
			contract.AnnotationFencedInstances: nil, contract.AnnotationDozingSince: nil, contract.AnnotationPostgresStopped: nil,
		})
	}
	return nil
}

// lifts reports whether the fence is to be lifted although nobody has come.
func lifts(view plan.Cluster) bool {
	asleep := view.Fenced && view.Switched && view.Hibernated
	unlisted := view.Dozing && view.Stopped && !view.Listed
	// The operator hibernates only a healthy cluster, which a fenced one may not be and does not become. Our own hibernation the
	// sidecar withdraws by itself.
	waiting := view.Fenced && view.Switched && !view.Ours && view.WaitsForHealthy
	return (asleep || unlisted || waiting) && !view.Gone
}

// deletes reports whether the instances' pods are to be deleted in the operator's place. The volumes of pods that are made anew
// must not be at risk.
func deletes(view plan.Cluster) bool {
	return view.Fenced && view.Switched && view.DeletingPods && !view.VolumesAtRisk && !view.Gone
}

// deleteInstances deletes the instances' pods that were seen. The informers may be late, and a woken instance must not be deleted:
// so the API server is asked before.
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
	if err != nil || !deletes(live) {
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

// live is the cluster as the API server has it. That of another Cluster of the same name is empty.
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

// deletePod deletes that pod, and no other of its name.
func (c *Controller) deletePod(ctx context.Context, pod *corev1.Pod) error {
	err := c.Client.Delete(ctx, &corev1.Pod{ObjectMeta: pod.ObjectMeta}, client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
