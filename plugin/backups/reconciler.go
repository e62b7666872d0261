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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cnpg-i/scale-to-zero/plugin/rbac"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/ownership"
)

// Reconciler resumes the marked ScheduledBackups of clusters without a sidecar that would.
type Reconciler struct{ client.Client }

// ByObject says what is kept of ScheduledBackups: all of each, since what is written is the difference to what was read, but of
// who changed what only whether we suspended it.
func ByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&cnpgv1.ScheduledBackup{}: {Transform: keepSchedules()}}
}

// keepSchedules makes the informers' transformation of ScheduledBackups. All that we suspended share one entry of who did.
func keepSchedules() func(any) (any, error) {
	suspendedByUs := []metav1.ManagedFieldsEntry{{Manager: contract.FieldManager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:suspend":{}}}`)}}
	return func(object any) (any, error) {
		schedule, ok := object.(*cnpgv1.ScheduledBackup)
		if !ok {
			return object, nil // an informer's marker of something that was missed
		}
		kept := *schedule // a part of a list would keep the whole list in memory
		kept.ManagedFields = nil
		if marked(schedule) && setByUs(schedule) {
			kept.ManagedFields = suspendedByUs
		}
		return &kept, nil
	}
}

// setByUs reports whether the suspension is ours alone.
func setByUs(schedule *cnpgv1.ScheduledBackup) bool {
	return ownership.SetByUs(schedule.ManagedFields, "spec", "suspend")
}

// SetupWithManager watches Clusters and ScheduledBackups.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	toCluster := func(_ context.Context, object client.Object) []reconcile.Request {
		schedule, ok := object.(*cnpgv1.ScheduledBackup)
		if !ok || !marked(schedule) {
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

// sidecarResumes reports whether the sidecar of the woken primary will do it. An annotation that is not understood is
// somebody's mistake and no wish to turn the feature off.
func sidecarResumes(cluster *cnpgv1.Cluster) bool {
	if !rbac.Lists(cluster) {
		return false
	}
	policy, problems := idle.ParsePolicy(cluster.Annotations, time.Now())
	return policy.Enabled || len(problems) != 0
}

func marked(schedule *cnpgv1.ScheduledBackup) bool {
	_, marked := schedule.Annotations[contract.AnnotationSuspended]
	return marked
}

// resume un-suspends and removes the mark in one patch, on the state that was read. One that a person resumed meanwhile, or
// came to own the suspension of, only loses the mark. Somebody who was faster, such as another replica, is no failure: what has changed and is still marked is looked at anew.
func (r *Reconciler) resume(ctx context.Context, schedule *cnpgv1.ScheduledBackup) error {
	before := schedule.DeepCopy()
	delete(schedule.Annotations, contract.AnnotationSuspended)
	if schedule.Spec.Suspend != nil && *schedule.Spec.Suspend && setByUs(schedule) {
		suspend := false
		schedule.Spec.Suspend = &suspend
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, schedule, patch); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("resume ScheduledBackup %s: %w", schedule.Name, err)
	}
	return nil
}
