// Package backups resumes what the sidecars suspended, where no sidecar can any longer: the Cluster does not list the plugin
// any more, or its annotation has turned the feature off.
package backups

import (
	"context"
	"errors"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cnpg-i/scale-to-zero/plugin/rights"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Reconciler resumes the marked ScheduledBackups of clusters without a sidecar that would.
type Reconciler struct{ client.Client }

// ByObject says what is kept of ScheduledBackups: all of each but who changed it when, since what is written is the difference
// to what was read.
func ByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&cnpgv1.ScheduledBackup{}: {Transform: cache.TransformStripManagedFields()}}
}

// SetupWithManager watches Clusters and ScheduledBackups.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	toCluster := func(_ context.Context, object client.Object) []reconcile.Request {
		schedule, is := object.(*cnpgv1.ScheduledBackup)
		if !is || !marked(schedule) {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{
			Namespace: schedule.Namespace, Name: schedule.Spec.Cluster.Name,
		}}}
	}
	err := ctrl.NewControllerManagedBy(manager).Named("backups").For(&cnpgv1.Cluster{}).
		Watches(&cnpgv1.ScheduledBackup{}, handler.EnqueueRequestsFromMapFunc(toCluster)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of backups: %w", err)
	}
	return nil
}

// Reconcile resumes what carries the mark, and only that.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var cluster cnpgv1.Cluster
	if err := r.Get(ctx, request.NamespacedName, &cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if sidecarResumes(&cluster) {
		return ctrl.Result{}, nil
	}
	var schedules cnpgv1.ScheduledBackupList
	if err := r.List(ctx, &schedules, client.InNamespace(cluster.Namespace)); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the ScheduledBackups: %w", err)
	}
	var failures []error
	for i := range schedules.Items {
		schedule := &schedules.Items[i]
		if schedule.Spec.Cluster.Name != cluster.Name || !marked(schedule) {
			continue
		}
		if err := r.resume(ctx, schedule); err != nil {
			failures = append(failures, err)
		}
	}
	return ctrl.Result{}, errors.Join(failures...)
}

// sidecarResumes tells whether the sidecar of the woken primary will do it. An annotation that is not understood is
// somebody's mistake and no wish to turn the feature off.
func sidecarResumes(cluster *cnpgv1.Cluster) bool {
	if !rights.Lists(cluster) {
		return false
	}
	policy, problems := idle.ParsePolicy(cluster.Annotations, time.Now())
	return policy.Enabled || len(problems) != 0
}

func marked(schedule *cnpgv1.ScheduledBackup) bool {
	_, marked := schedule.Annotations[idle.KeySuspended]
	return marked
}

// resume un-suspends and removes the mark in one patch, on the state that was read. One that a person resumed meanwhile only
// loses the mark. Somebody who was faster, such as another replica, is no failure: what has changed and is still marked is looked at anew.
func (r *Reconciler) resume(ctx context.Context, schedule *cnpgv1.ScheduledBackup) error {
	before := schedule.DeepCopy()
	delete(schedule.Annotations, idle.KeySuspended)
	if schedule.Spec.Suspend != nil && *schedule.Spec.Suspend {
		suspend := false
		schedule.Spec.Suspend = &suspend
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, schedule, patch); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("resume ScheduledBackup %s: %w", schedule.Name, err)
	}
	return nil
}
