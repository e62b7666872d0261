// Package informers says what the plugin keeps in memory of the objects that it watches, and how it finds them. A fleet has
// tens of thousands of Services, pods and EndpointSlices, so that nothing is kept that no decision needs.
package informers

import (
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/lifecycle"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// ByObject says what is watched and kept. namespace is the plugin's own, where every pod is watched: the gateways' carry no
// label that is sure to be there, since they may be the operator's.
//
// What is read from these informers is shared and must not be changed.
func ByObject(namespace string) map[client.Object]cache.ByObject {
	cluster := labels.NewSelector()
	if has, err := labels.NewRequirement(slices.LabelCluster, "exists", nil); err == nil {
		cluster = cluster.Add(*has)
	}
	shared := ptr.To(true)
	return map[client.Object]cache.ByObject{
		&cnpgv1.Cluster{}: {Transform: keep(clusters), UnsafeDisableDeepCopy: shared},
		&corev1.Service{}: {Label: cluster, Transform: keep(briefly), UnsafeDisableDeepCopy: shared},
		&corev1.Pod{}: {
			Namespaces: map[string]cache.Config{
				cache.AllNamespaces: {LabelSelector: cluster}, namespace: {LabelSelector: labels.Everything()},
			},
			Transform: keep(pods), UnsafeDisableDeepCopy: shared,
		},
		// Kubernetes copies a Service's labels to its slices.
		&discoveryv1.EndpointSlice{}: {Label: cluster, Transform: keep(endpoints), UnsafeDisableDeepCopy: shared},
		&corev1.ConfigMap{}: {
			Namespaces:            map[string]cache.Config{namespace: {LabelSelector: labels.SelectorFromSet(labels.Set{ports.Label: ports.LabelValue})}},
			UnsafeDisableDeepCopy: shared,
		},
	}
}

// keep makes an informers' transformation of a function of one type.
func keep[T any](part func(T) any) func(any) (any, error) {
	return func(object any) (any, error) {
		if typed, is := object.(T); is {
			return part(typed), nil
		}
		return object, nil // an informer's marker of something that was missed
	}
}

// identity is what tells an object and its state.
func identity(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: one(o.Namespace), Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Generation: o.Generation,
		DeletionTimestamp: o.DeletionTimestamp, CreationTimestamp: o.CreationTimestamp,
	}
}

// clusters keeps the annotations that are understood, what the plan, the wake, the sidecars' rights and the metrics depend on,
// and of who changed what only the switch.
func clusters(c *cnpgv1.Cluster) any {
	kept := &cnpgv1.Cluster{ObjectMeta: identity(&c.ObjectMeta)}
	for key, value := range c.Annotations {
		if strings.HasPrefix(key, idle.Prefix) || key == idle.KeyHibernation {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[one(key)] = oftenTheSame(value)
		}
	}
	if plan.Owned(c.ManagedFields) {
		kept.ManagedFields = switchOurs
	}
	var plugins []cnpgv1.PluginConfiguration
	for _, plugin := range c.Spec.Plugins {
		plugins = append(plugins, cnpgv1.PluginConfiguration{Name: plugin.Name, Enabled: plugin.Enabled})
	}
	kept.Spec.Plugins = pluginsOfAll.of(plugins)
	kept.Spec.Instances, kept.Spec.ServiceAccountName = c.Spec.Instances, c.Spec.ServiceAccountName
	kept.Spec.PodSelectorRefs, kept.Spec.PostgresConfiguration.PgHBA = c.Spec.PodSelectorRefs, c.Spec.PostgresConfiguration.PgHBA
	kept.Status.CurrentPrimary, kept.Status.TargetPrimary = c.Status.CurrentPrimary, c.Status.TargetPrimary
	if c.Status.TargetPrimary == c.Status.CurrentPrimary {
		kept.Status.TargetPrimary = kept.Status.CurrentPrimary // and no text of its own
	}
	kept.Spec.Resources = corev1.ResourceRequirements{Requests: saved(c.Spec.Resources.Requests), Limits: saved(c.Spec.Resources.Limits)}
	for _, condition := range c.Status.Conditions {
		if condition.Type == idle.KeyHibernation { // the operator names the condition like the annotation
			kept.Status.Conditions = []metav1.Condition{{
				Type: idle.KeyHibernation, Status: condition.Status, Reason: one(condition.Reason),
				LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	return kept
}

// oftenTheSame is an annotation's value. Short ones, such as on, are those of many clusters; a time is a cluster's own.
func oftenTheSame(value string) string {
	if len(value) <= len("inactivity") {
		return one(value)
	}
	return value
}

// pluginsOfAll are what a fleet's clusters mostly list.
var pluginsOfAll shared[[]cnpgv1.PluginConfiguration]

// saved is what a metric says that a sleeping cluster saves.
func saved(resources corev1.ResourceList) corev1.ResourceList {
	var kept corev1.ResourceList
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, given := resources[name]; given {
			if kept == nil {
				kept = corev1.ResourceList{}
			}
			kept[name] = quantity
		}
	}
	return kept
}

// switchOurs is what remains of who changed what.
var switchOurs = []metav1.ManagedFieldsEntry{{Manager: plan.FieldManager, FieldsV1: switchField}}

// switchField is the part of a field manager's entry that says whose the switch is.
var switchField = &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{"f:` + idle.KeyHibernation + `":{}}}}`)}

func pods(p *corev1.Pod) any {
	kept := &corev1.Pod{ObjectMeta: identity(&p.ObjectMeta)}
	for key, value := range p.Labels {
		if strings.HasPrefix(key, "cnpg.io/") || key == "role" { // what the Services' selectors ask for
			if kept.Labels == nil {
				kept.Labels = map[string]string{}
			}
			kept.Labels[key] = value
		}
	}
	kept.Spec.Containers = lifecycle.OnlySidecar(p) // a metric shows which version runs where
	kept.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{
				Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	return kept
}

// endpoints keeps of a Service's own slice which endpoints are ready. One without any, as all of a sleeping cluster are, says
// nothing; it is kept as a slice again with its first endpoint.
func endpoints(s *discoveryv1.EndpointSlice) any {
	if slices.IsOurs(s) {
		return ours(s)
	}
	if len(s.Endpoints) == 0 {
		return &unspoken{ObjectMeta: nothing, namespace: one(s.Namespace), name: s.Name, version: s.ResourceVersion}
	}
	kept := &discoveryv1.EndpointSlice{ObjectMeta: identity(&s.ObjectMeta), AddressType: s.AddressType}
	kept.Labels = map[string]string{
		slices.LabelCluster:          partOf(s.Name, s.Labels[slices.LabelCluster]),
		discoveryv1.LabelServiceName: partOf(s.Name, s.Labels[discoveryv1.LabelServiceName]),
	}
	for _, endpoint := range s.Endpoints {
		kept.Endpoints = append(kept.Endpoints, discoveryv1.Endpoint{
			Addresses: endpoint.Addresses, Conditions: discoveryv1.EndpointConditions{Ready: endpoint.Conditions.Ready},
		})
	}
	return kept
}

// What a gateway's slices say alike: where it is, and, of the port, the name and the protocol.
var (
	endpointsOfAll shared[[]discoveryv1.Endpoint]
	portNameOfAll  shared[*string]
	protocolOfAll  shared[*corev1.Protocol]
)

// ours keeps a slice of a gateway whole, to be compared and mended.
func ours(s *discoveryv1.EndpointSlice) any {
	kept := *s // a part of a list would keep the whole list in memory
	kept.ManagedFields = nil
	kept.Namespace, kept.AddressType = one(s.Namespace), discoveryv1.AddressType(one(string(s.AddressType)))
	kept.Labels, kept.OwnerReferences = partsOf(s.Name, s.Labels), owners(s.Name, s.OwnerReferences)
	kept.Endpoints = endpointsOfAll.of(s.Endpoints)
	for i := range kept.Ports {
		port := &kept.Ports[i]
		port.Name, port.Protocol = portNameOfAll.of(port.Name), protocolOfAll.of(port.Protocol)
	}
	return &kept
}
