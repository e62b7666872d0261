// Package fleet keeps on the API server what the Clusters need besides a wake. Each replica of the plugin runs its
// controllers; without a difference they write nothing:
//
//   - the rights of the sidecars, one Role and one RoleBinding for every Cluster that lists the plugin, owned by that
//     Cluster, and none for any other: role.go says which, rights.go writes them
//   - the ScheduledBackups that sidecars suspended, which are resumed where no sidecar can any longer: the Cluster no
//     longer lists the plugin, or its annotation has turned the feature off (backups.go)
//   - the annotations of a Namespace, which are copied to its Clusters (defaults.go)
package fleet

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// ByObject returns the informers' options: they watch the Roles and RoleBindings of this package, without
// managedFields, and of Namespaces they keep the annotations of this project.
func ByObject() map[client.Object]cache.ByObject {
	ours := labels.SelectorFromSet(labels.Set{contract.LabelManagedBy: contract.ManagedBy})
	return map[client.Object]cache.ByObject{
		&rbacv1.Role{}:        {Label: ours, Transform: cache.TransformStripManagedFields()},
		&rbacv1.RoleBinding{}: {Label: ours, Transform: cache.TransformStripManagedFields()},
		&corev1.Namespace{}:   {Transform: keep},
	}
}

// SetupWithManager sets up the controllers. resource is the group and version of Clusters; enqueued delivers the
// clusters that the operator is about to reconcile.
func SetupWithManager(
	manager ctrl.Manager, recorder record.EventRecorder, resource schema.GroupVersion, enqueued <-chan event.GenericEvent,
) error {
	rights := &rights{manager.GetClient(), manager.GetAPIReader(), recorder, resource, enqueued}
	return errors.Join(
		rights.setUp(manager), (&backups{manager.GetClient()}).setUp(manager), setUpDefaults(manager, recorder),
	)
}
