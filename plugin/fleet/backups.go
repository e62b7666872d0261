package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// backups resumes the marked ScheduledBackups of clusters whose sidecars will not.
type backups struct{ client.Client }

// setUp watches Clusters and ScheduledBackups.
func (r *backups) setUp(manager ctrl.Manager) error {
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

// Reconcile resumes the marked ScheduledBackups.
func (r *backups) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
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

// sidecarResumes reports whether the sidecar of the woken primary will resume them. An invalid annotation is a mistake,
// not a wish to turn the feature off.
func sidecarResumes(cluster *cnpgv1.Cluster) bool {
	if !plan.Lists(cluster) {
		return false
	}
	policy, problems := idle.ParsePolicy(cluster.Annotations, time.Now())
	return policy.Enabled || len(problems) != 0
}

func marked(schedule *cnpgv1.ScheduledBackup) bool {
	_, marked := schedule.Annotations[contract.AnnotationSuspended]
	return marked
}

// resume resumes the schedule and removes the mark in one patch, with the resourceVersion as precondition. If a person
// resumed it meanwhile, or became an owner of spec.suspend, only the mark is removed. A conflict, for example with
// another replica, is not an error: the change is reconciled again if the mark is still there.
func (r *backups) resume(ctx context.Context, schedule *cnpgv1.ScheduledBackup) error {
	before := schedule.DeepCopy()
	delete(schedule.Annotations, contract.AnnotationSuspended)
	if schedule.IsSuspended() && contract.SetByUs(schedule.ManagedFields, "spec", "suspend") {
		schedule.Spec.Suspend = new(false)
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, schedule, patch); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("resume ScheduledBackup %s: %w", schedule.Name, err)
	}
	return nil
}
