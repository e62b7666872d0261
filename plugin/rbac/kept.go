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
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// In a fleet nearly all Roles and RoleBindings are exactly as this package makes them, so that their content follows from their
// cluster. The informers keep only the identity of those; they are recognized by having no labels, since an object without
// labels is not watched. An object that differs in anything is kept whole, to be repaired.

// keepRole returns the informers' transform function for Roles.
func keepRole(resource schema.GroupVersion) func(any) (any, error) {
	version := resource.String()
	return func(object any) (any, error) {
		role, ok := object.(*rbacv1.Role)
		if !ok {
			return object, nil // a tombstone of a missed deletion
		}
		cluster := roleMadeFor(role)
		want := Role(cluster, resource)
		if equality.Semantic.DeepEqual(role.Rules, want.Rules) && bare(role) && same(role, want) {
			return &rbacv1.Role{ObjectMeta: brief(role, version), Rules: briefRules(cluster)}, nil
		}
		kept := *role // a pointer into a list would keep the whole list in memory
		kept.ManagedFields = nil
		return &kept, nil
	}
}

// keepBinding returns the informers' transform function for RoleBindings.
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

// madeFor returns the Cluster that an object was made for, according to the object.
func madeFor(object metav1.Object) *cnpgv1.Cluster {
	cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: strings.TrimSuffix(object.GetName(), suffix),
	}}
	if owner := metav1.GetControllerOf(object); owner != nil {
		cluster.UID = owner.UID
	}
	return cluster
}

// roleMadeFor is madeFor for a Role, kept or whole: its last rule names the pod of a cluster that dozes.
func roleMadeFor(role *rbacv1.Role) *cnpgv1.Cluster {
	cluster := madeFor(role)
	if len(role.Rules) == 0 {
		return cluster
	}
	if last := role.Rules[len(role.Rules)-1]; len(last.ResourceNames) == 1 {
		cluster.Annotations = map[string]string{contract.AnnotationDozeMinutes: ""}
		cluster.Status.CurrentPrimary = last.ResourceNames[0]
	}
	return cluster
}

// briefRules keeps of the rules only the name of the pod.
func briefRules(cluster *cnpgv1.Cluster) []rbacv1.PolicyRule {
	if cluster.Status.CurrentPrimary == "" {
		return nil
	}
	return []rbacv1.PolicyRule{{ResourceNames: []string{cluster.Status.CurrentPrimary}}}
}

// bare reports whether an object has none of the metadata that this package does not write.
func bare(object metav1.Object) bool {
	return len(object.GetAnnotations()) == 0 && len(object.GetFinalizers()) == 0 && object.GetDeletionTimestamp() == nil
}

// controls is shared by all owner references to save memory.
var controls = ptr.To(true)

// brief returns the metadata to keep of an object that is as wanted: its owner and version. The cluster's name shares memory
// with the object's name, and version is one string for all.
func brief(have metav1.Object, version string) metav1.ObjectMeta {
	cluster := madeFor(have)
	return metav1.ObjectMeta{
		Namespace: intern.String(have.GetNamespace()), Name: have.GetName(), ResourceVersion: have.GetResourceVersion(),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: version, Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: controls,
		}},
	}
}

// wholeRole restores a Role from the informers.
func wholeRole(kept *rbacv1.Role, resource schema.GroupVersion) *rbacv1.Role {
	if kept.Labels != nil {
		return kept
	}
	whole := Role(roleMadeFor(kept), resource)
	whole.ResourceVersion = kept.ResourceVersion
	return whole
}

// wholeBinding restores a RoleBinding from the informers.
func wholeBinding(kept *rbacv1.RoleBinding, resource schema.GroupVersion) *rbacv1.RoleBinding {
	if kept.Labels != nil {
		return kept
	}
	whole := RoleBinding(madeFor(kept), resource)
	whole.ResourceVersion = kept.ResourceVersion
	return whole
}
