package fleet

import (
	"context"
	"fmt"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// rights maintains the Role and the RoleBinding of every Cluster. Several replicas may run at once: each accepts what
// another has created. Without a difference it writes nothing.
type rights struct {
	client.Client
	// live reads what the informers do not watch or do not know yet.
	live client.Reader
	// recorder writes an Event where an object that is not ours has the name of one of these.
	recorder record.EventRecorder
	// resource is the group and version of Clusters.
	resource schema.GroupVersion
	// enqueued delivers the clusters that the operator is about to reconcile.
	enqueued <-chan event.GenericEvent
}

// atOnce is how many clusters are reconciled concurrently: an API server takes about 100 ms to write a Role, because it
// first checks that the writer holds the granted rights.
const atOnce = 16

// setUp watches Clusters, the objects made for them, and the clusters that the operator's hook enqueues.
func (r *rights) setUp(manager ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(manager).Named("rbac").For(&cnpgv1.Cluster{}).
		Owns(&rbacv1.Role{}).Owns(&rbacv1.RoleBinding{}).
		WatchesRawSource(source.Channel(r.enqueued, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the RBAC controller: %w", err)
	}
	return nil
}

// Reconcile creates, repairs or deletes the rights of the cluster's sidecars.
func (r *rights) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var cluster cnpgv1.Cluster
	if err := r.Get(ctx, request.NamespacedName, &cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err) // the objects that it owned are garbage collected
	}
	role, binding := Role(&cluster, r.resource), RoleBinding(&cluster, r.resource)
	if !plan.Lists(&cluster) || !cluster.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.remove(ctx, binding, role)
	}
	if err := r.ensureRole(ctx, &cluster, role); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.ensureBinding(ctx, &cluster, binding)
}

func (r *rights) ensureRole(ctx context.Context, cluster *cnpgv1.Cluster, want *rbacv1.Role) error {
	var have rbacv1.Role
	err := r.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) {
		return r.create(ctx, cluster, want)
	}
	if err != nil {
		return fmt.Errorf("read Role %s: %w", want.Name, err)
	}
	if withPods(have.Rules, cluster) && !withPods(want.Rules, cluster) { // a pod must get its requests back, even without the annotation
		want.Rules = append(want.Rules, podRules(cluster)...)
	}
	if equality.Semantic.DeepEqual(have.Rules, want.Rules) && same(&have, want) {
		return nil
	}
	have.Rules, have.Labels, have.OwnerReferences = want.Rules, want.Labels, want.OwnerReferences
	return r.update(ctx, &have)
}

func (r *rights) ensureBinding(ctx context.Context, cluster *cnpgv1.Cluster, want *rbacv1.RoleBinding) error {
	var have rbacv1.RoleBinding
	err := r.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) {
		return r.create(ctx, cluster, want)
	}
	if err != nil {
		return fmt.Errorf("read RoleBinding %s: %w", want.Name, err)
	}
	switch {
	case have.RoleRef != want.RoleRef: // roleRef is immutable
		if err := r.remove(ctx, &have); err != nil {
			return err
		}
		return r.create(ctx, cluster, want)
	case equality.Semantic.DeepEqual(have.Subjects, want.Subjects) && same(&have, want):
		return nil
	}
	have.Subjects, have.Labels, have.OwnerReferences = want.Subjects, want.Labels, want.OwnerReferences
	return r.update(ctx, &have)
}

// update updates an object. If another replica has updated it meanwhile, the informers will deliver that change.
func (r *rights) update(ctx context.Context, object client.Object) error {
	if err := r.Update(ctx, object); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("update %T %s: %w", object, object.GetName(), err)
	}
	return nil
}

func same(have, want client.Object) bool {
	return equality.Semantic.DeepEqual(have.GetLabels(), want.GetLabels()) &&
		equality.Semantic.DeepEqual(have.GetOwnerReferences(), want.GetOwnerReferences())
}

// create creates an object, unless it is being deleted with its namespace or another replica has created it.
func (r *rights) create(ctx context.Context, cluster *cnpgv1.Cluster, object client.Object) error {
	err := r.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) {
		return r.accept(ctx, cluster, object)
	}
	if err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return fmt.Errorf("create %T %s: %w", object, object.GetName(), err)
}

// accept returns nil for an object with this package's label, which the informers watch. Any other object of that name
// grants the sidecars nothing, so accept writes an Event and fails.
func (r *rights) accept(ctx context.Context, cluster *cnpgv1.Cluster, object client.Object) error {
	kind, err := r.GroupVersionKindFor(object)
	if err != nil {
		return fmt.Errorf("find the kind of %T: %w", object, err)
	}
	var found metav1.PartialObjectMetadataList
	found.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	named := client.MatchingFields{"metadata.name": object.GetName()}
	if err := r.live.List(ctx, &found, client.InNamespace(object.GetNamespace()), named); err != nil {
		return fmt.Errorf("list %s %s: %w", kind.Kind, object.GetName(), err)
	}
	for i := range found.Items {
		if found.Items[i].Labels[contract.LabelManagedBy] != contract.ManagedBy {
			r.recorder.Eventf(cluster, corev1.EventTypeWarning, "RightsNotGranted",
				"The sidecars have no rights: %s %s exists without the label %s=%s; delete or rename it", kind.Kind, object.GetName(), contract.LabelManagedBy, contract.ManagedBy)
			return fmt.Errorf("create %s %s: one without the label %s exists", kind.Kind, object.GetName(), contract.LabelManagedBy)
		}
	}
	return nil
}

// remove deletes the objects that the informers know, and no others.
func (r *rights) remove(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		have := object.DeepCopyObject().(client.Object)
		err := r.Get(ctx, client.ObjectKeyFromObject(object), have)
		if err == nil {
			err = r.Delete(ctx, have)
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}
