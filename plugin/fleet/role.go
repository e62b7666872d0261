package fleet

import (
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// suffix is appended to the cluster's name. The operator gives its Role the name of the Cluster, and none can contain a
// dot.
const suffix = ".scale-to-zero"

// Role permits exactly what the sidecar does. RBAC cannot restrict create by name, nor a list of several objects.
func Role(cluster *cnpgv1.Cluster, resource schema.GroupVersion) *rbacv1.Role {
	role := &rbacv1.Role{
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
	if minutes := contract.Effective(cluster.Annotations)[contract.AnnotationDozeMinutes]; minutes != "" && minutes != contract.None {
		role.Rules = append(role.Rules, podRules(cluster)...)
	}
	return role
}

// podRules permits what the sidecar of a cluster that dozes does to its own pod, the primary's: it changes what the pod
// requests.
func podRules(cluster *cnpgv1.Cluster) []rbacv1.PolicyRule {
	if cluster.Status.CurrentPrimary == "" {
		return nil // a rule without names would be for all pods
	}
	pod := []string{cluster.Status.CurrentPrimary}
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: pod, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods/resize"}, ResourceNames: pod, Verbs: []string{"patch"}},
	}
}

// withPods reports whether rules are those of a Role with the rules for the cluster's pod.
func withPods(rules []rbacv1.PolicyRule, cluster *cnpgv1.Cluster) bool {
	pod := podRules(cluster)
	return len(pod) != 0 && len(rules) > len(pod) && equality.Semantic.DeepEqual(rules[len(rules)-len(pod):], pod)
}

// RoleBinding grants the Role to the service account of the cluster's pods.
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
		Labels: map[string]string{contract.LabelManagedBy: contract.ManagedBy, "cnpg.io/cluster": cluster.Name},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: resource.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: ptr.To(true),
		}},
	}
}
