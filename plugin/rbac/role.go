// Package rbac keeps what the sidecars of a cluster may do: one Role and one RoleBinding for every Cluster that lists the
// plugin, owned by it, and none for any other.
package rbac

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Label marks what this package made; the informers see nothing else.
const (
	Label      = "app.kubernetes.io/managed-by"
	LabelValue = "cnpg-i-scale-to-zero"
)

// ByObject says what is watched and kept: what this package made, without who changed it when. resource is the group and
// version of Clusters.
func ByObject(resource schema.GroupVersion) map[client.Object]cache.ByObject {
	ours := labels.SelectorFromSet(labels.Set{Label: LabelValue})
	return map[client.Object]cache.ByObject{
		&rbacv1.Role{}:        {Label: ours, Transform: keepRole(resource)},
		&rbacv1.RoleBinding{}: {Label: ours, Transform: keepBinding(resource)},
	}
}

// suffix is what the names add to the cluster's.
const suffix = "-scale-to-zero"

// Lists reports whether the Cluster lists the plugin and has not turned it off.
func Lists(cluster *cnpgv1.Cluster) bool {
	for _, plugin := range cluster.Spec.Plugins {
		if plugin.Name == contract.PluginName && (plugin.Enabled == nil || *plugin.Enabled) {
			return true
		}
	}
	return false
}

// Role permits what the sidecar does and nothing else. RBAC cannot restrict create, nor list to some names.
func Role(cluster *cnpgv1.Cluster, resource schema.GroupVersion) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: objectMeta(cluster, resource),
		Rules: []rbacv1.PolicyRule{
			{
				APIGroups: []string{resource.Group}, Resources: []string{"clusters"}, ResourceNames: []string{cluster.Name},
				Verbs: []string{"get", "list", "watch", "patch"},
			},
			{APIGroups: []string{resource.Group}, Resources: []string{"scheduledbackups"}, Verbs: []string{"list", "patch"}},
			{APIGroups: []string{resource.Group}, Resources: []string{"backups"}, Verbs: []string{"list"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
		},
	}
}

// RoleBinding gives the Role to the service account that the cluster's pods run as.
func RoleBinding(cluster *cnpgv1.Cluster, resource schema.GroupVersion) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: objectMeta(cluster, resource),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: cluster.Name + suffix},
		Subjects: []rbacv1.Subject{{
			Kind: rbacv1.ServiceAccountKind, Namespace: cluster.Namespace, Name: cluster.GetServiceAccountName(),
		}},
	}
}

func objectMeta(cluster *cnpgv1.Cluster, resource schema.GroupVersion) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: cluster.Namespace, Name: cluster.Name + suffix,
		Labels: map[string]string{Label: LabelValue, "cnpg.io/cluster": cluster.Name},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: resource.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: ptr.To(true),
		}},
	}
}
