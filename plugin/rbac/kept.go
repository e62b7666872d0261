package rbac

import (
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/plugin/intern"
)

// A Role and a RoleBinding that are as this package makes them follow from whose they are, and of a fleet's nearly all are.
// The informers keep no more of those than that; they can be told by their labels, since what has none is not watched. What
// differs in anything is kept whole, to be mended.

// keepRole makes the informers' transformation of Roles.
func keepRole(resource schema.GroupVersion) func(any) (any, error) {
	version := resource.String()
	return func(object any) (any, error) {
		role, ok := object.(*rbacv1.Role)
		if !ok {
			return object, nil // an informer's marker of something that was missed
		}
		want := Role(madeFor(role), resource)
		if equality.Semantic.DeepEqual(role.Rules, want.Rules) && bare(role) && same(role, want) {
			return &rbacv1.Role{ObjectMeta: brief(role, version)}, nil
		}
		kept := *role // a part of a list would keep the whole list in memory
		kept.ManagedFields = nil
		return &kept, nil
	}
}

// keepBinding makes the informers' transformation of RoleBindings.
func keepBinding(resource schema.GroupVersion) func(any) (any, error) {
	version := resource.String()
	return func(object any) (any, error) {
		binding, ok := object.(*rbacv1.RoleBinding)
		if !ok {
			return object, nil
		}
		want := RoleBinding(madeFor(binding), resource)
		if binding.RoleRef == want.RoleRef && equality.Semantic.DeepEqual(binding.Subjects, want.Subjects) && bare(binding) && same(binding, want) {
			return &rbacv1.RoleBinding{ObjectMeta: brief(binding, version)}, nil
		}
		kept := *binding
		kept.ManagedFields = nil
		return &kept, nil
	}
}

// madeFor is the Cluster that an object says it was made for, as far as it says so.
func madeFor(object metav1.Object) *cnpgv1.Cluster {
	cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: strings.TrimSuffix(object.GetName(), suffix),
	}}
	if owner := metav1.GetControllerOf(object); owner != nil {
		cluster.UID = owner.UID
	}
	return cluster
}

// bare reports whether nobody has added to an object what this package does not write.
func bare(object metav1.Object) bool {
	return len(object.GetAnnotations()) == 0 && len(object.GetFinalizers()) == 0 && object.GetDeletionTimestamp() == nil
}

// controls is the only copy in memory of what says that an owner is a controller.
var controls = ptr.To(true)

// brief is what has to be kept of an object that is the wanted one: whose it is, and its version. The cluster's name is a part
// of the object's, and the API's version of Clusters one text for all.
func brief(have metav1.Object, version string) metav1.ObjectMeta {
	cluster := madeFor(have)
	return metav1.ObjectMeta{
		Namespace: intern.String(have.GetNamespace()), Name: have.GetName(), ResourceVersion: have.GetResourceVersion(),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: version, Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: controls,
		}},
	}
}

// wholeRole is a Role from the informers with what follows from whose it is.
func wholeRole(kept *rbacv1.Role, resource schema.GroupVersion) *rbacv1.Role {
	if kept.Labels != nil {
		return kept
	}
	whole := Role(madeFor(kept), resource)
	whole.ResourceVersion = kept.ResourceVersion
	return whole
}

// wholeBinding is a RoleBinding from the informers with what follows from whose it is.
func wholeBinding(kept *rbacv1.RoleBinding, resource schema.GroupVersion) *rbacv1.RoleBinding {
	if kept.Labels != nil {
		return kept
	}
	whole := RoleBinding(madeFor(kept), resource)
	whole.ResourceVersion = kept.ResourceVersion
	return whole
}
