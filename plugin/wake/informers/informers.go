// Package informers says what the plugin keeps in memory of the objects that it watches, and how it finds them. A fleet has
// tens of thousands of Services, pods and EndpointSlices, so that nothing is kept that no decision needs.
package informers

import (
	stdslices "slices"
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ByObject says what is watched and kept. namespace is the plugin's own, where every pod is watched: the gateways' carry no
// label that is sure to be there, since they may be the operator's.
//
// What is read from these informers is shared and must not be changed.
func ByObject(namespace string) map[client.Object]cache.ByObject {
	cluster := labels.NewSelector()
	if has, err := labels.NewRequirement(endpointslice.LabelCluster, "exists", nil); err == nil {
		cluster = cluster.Add(*has)
	}
	shared := ptr.To(true)
	return map[client.Object]cache.ByObject{
		&cnpgv1.Cluster{}: {Transform: keep(clusters), UnsafeDisableDeepCopy: shared},
		// Anybody may have made a Service that leads to a cluster's instances, and its slices carry the labels that it has.
		&corev1.Service{}: {Transform: keep(briefly), UnsafeDisableDeepCopy: shared},
		&corev1.Pod{}: {
			Namespaces: map[string]cache.Config{
				cache.AllNamespaces: {LabelSelector: cluster}, namespace: {LabelSelector: labels.Everything()},
			},
			Transform: keep(pods), UnsafeDisableDeepCopy: shared,
		},
		&corev1.Node{}:                {Transform: keep(nodes), UnsafeDisableDeepCopy: shared},
		&discoveryv1.EndpointSlice{}:  {Transform: keep(endpoints), UnsafeDisableDeepCopy: shared},
		&networkingv1.NetworkPolicy{}: {Transform: keep(policies), UnsafeDisableDeepCopy: shared},
		&corev1.ConfigMap{}: {
			Namespaces:            map[string]cache.Config{namespace: {LabelSelector: labels.SelectorFromSet(labels.Set{ports.Label: ports.LabelValue})}},
			UnsafeDisableDeepCopy: shared,
		},
	}
}

// keep makes an informers' transformation of a function of one type.
func keep[T any](part func(T) any) func(any) (any, error) {
	return func(object any) (any, error) {
		if typed, ok := object.(T); ok {
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
// and of who changed what only the hibernation annotation and the fence.
func clusters(c *cnpgv1.Cluster) any {
	kept := &cnpgv1.Cluster{ObjectMeta: identity(&c.ObjectMeta)}
	for key, value := range c.Annotations {
		if strings.HasPrefix(key, contract.Prefix) || key == contract.AnnotationHibernation || key == contract.AnnotationFencedInstances {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[one(key)] = value
		}
	}
	kept.ManagedFields = whatIsOurs(c)
	var plugins []cnpgv1.PluginConfiguration
	for _, plugin := range c.Spec.Plugins {
		plugins = append(plugins, cnpgv1.PluginConfiguration{Name: plugin.Name, Enabled: plugin.Enabled})
	}
	kept.Spec.Plugins = pluginsOfAll.of(plugins)
	kept.Spec.Instances, kept.Spec.ServiceAccountName = c.Spec.Instances, c.Spec.ServiceAccountName
	if inherited := c.Spec.InheritedMetadata; inherited != nil && len(inherited.Labels) != 0 { // Services may select by them
		kept.Spec.InheritedMetadata = &cnpgv1.EmbeddedObjectMetadata{Labels: inherited.Labels}
	}
	if window := c.Spec.NodeMaintenanceWindow; window != nil && window.InProgress {
		kept.Spec.NodeMaintenanceWindow = window
	}
	kept.Spec.PodSelectorRefs, kept.Spec.PostgresConfiguration.PgHBA = c.Spec.PodSelectorRefs, c.Spec.PostgresConfiguration.PgHBA
	if plan.OnlyStreaming(c) {
		kept.Spec.Probes = c.Spec.Probes
	}
	versions := &c.Status.SecretsResourceVersion // a wake waits until those that have changed are applied
	kept.Status.SecretsResourceVersion = cnpgv1.SecretsResourceVersion{
		ApplicationSecretVersion: versions.ApplicationSecretVersion, SuperuserSecretVersion: versions.SuperuserSecretVersion,
		ManagedRoleSecretVersions: versions.ManagedRoleSecretVersions,
	}
	kept.Status.CurrentPrimary, kept.Status.TargetPrimary = c.Status.CurrentPrimary, c.Status.TargetPrimary
	kept.Status.CommitHash = one(c.Status.CommitHash) // while it dozes, a new version is the operator's reason to continue
	var versionsOfPlugins []cnpgv1.PluginStatus
	for _, plugin := range c.Status.PluginStatus {
		versionsOfPlugins = append(versionsOfPlugins, cnpgv1.PluginStatus{Name: plugin.Name, Version: plugin.Version})
	}
	kept.Status.PluginStatus = versionsOfAll.of(versionsOfPlugins)
	if plan.BlockedByPlugin(c) {
		kept.Status.Phase, kept.Status.PhaseReason = one(c.Status.Phase), c.Status.PhaseReason
	}
	kept.Spec.Resources = corev1.ResourceRequirements{Requests: saved(c.Spec.Resources.Requests), Limits: saved(c.Spec.Resources.Limits)}
	if condition := apimeta.FindStatusCondition(c.Status.Conditions, contract.ConditionHibernation); condition != nil {
		kept.Status.Conditions = []metav1.Condition{{
			Type: contract.ConditionHibernation, Status: condition.Status, Reason: one(condition.Reason),
			LastTransitionTime: condition.LastTransitionTime,
		}}
	}
	return kept
}

// What a fleet's clusters mostly list, and which versions of it the operator has loaded.
var (
	pluginsOfAll  shared[[]cnpgv1.PluginConfiguration]
	versionsOfAll shared[[]cnpgv1.PluginStatus]
)

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

// What remains of who changed what.
var (
	switchOurs = setByUs(contract.AnnotationHibernation)
	fenceOurs  = setByUs(contract.AnnotationFencedInstances)
	bothOurs   = append(setByUs(contract.AnnotationHibernation), fenceOurs...)
)

// setByUs says that this project has set an annotation.
func setByUs(key string) []metav1.ManagedFieldsEntry {
	fields := &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:annotations":{"f:` + key + `":{}}}}`)}
	return []metav1.ManagedFieldsEntry{{Manager: contract.FieldManager, FieldsV1: fields}}
}

// whatIsOurs says which of the hibernation annotation and the fence this project has set.
func whatIsOurs(c *cnpgv1.Cluster) []metav1.ManagedFieldsEntry {
	switch hibernates, dozes := plan.OwnsHibernation(c.ManagedFields), contract.Dozes(c.Annotations, c.ManagedFields); {
	case hibernates && dozes:
		return bothOurs
	case hibernates:
		return switchOurs
	case dozes:
		return fenceOurs
	default:
		return nil
	}
}

func pods(p *corev1.Pod) any {
	kept := &corev1.Pod{ObjectMeta: identity(&p.ObjectMeta)}
	if endpointslice.IsInstance(p) { // a Service's selector may ask for any of them
		kept.Labels, kept.OwnerReferences = partsOf(p.Name, p.Labels), controller(p)
		kept.Spec.NodeName, kept.Spec.Tolerations = one(p.Spec.NodeName), tolerationsOfAll.of(p.Spec.Tolerations)
	} else if cluster := p.Labels[endpointslice.LabelCluster]; cluster != "" {
		kept.Labels = map[string]string{endpointslice.LabelCluster: partOf(p.Name, cluster)}
	}
	kept.Spec.Containers = cnpgi.OnlySidecar(p)           // a metric shows which version runs where
	kept.Spec.InitContainers = cnpgi.SlowStartupProbes(p) // an Event tells of what a wake waited for
	kept.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
	if !endpointslice.IsInstance(p) { // a replica that starts is told from one that is dead
		kept.Status.StartTime = p.Status.StartTime
		kept.Status.InitContainerStatuses, kept.Status.ContainerStatuses = running(p.Status.InitContainerStatuses), running(p.Status.ContainerStatuses)
	}
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{
				Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	return kept
}

// controller is what is kept of a pod's owners: whose instance it is.
func controller(p *corev1.Pod) []metav1.OwnerReference {
	of := metav1.GetControllerOfNoCopy(p)
	return ownersOfBefore.of([]metav1.OwnerReference{{Kind: one(of.Kind), Name: partOf(p.Name, of.Name), Controller: of.Controller}})
}

// tolerationsOfAll are what a fleet's instances mostly tolerate.
var tolerationsOfAll shared[[]corev1.Toleration]

// nodes keeps of a node which pods are to leave it.
func nodes(n *corev1.Node) any {
	kept := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}
	kept.Spec.Unschedulable, kept.Spec.Taints = n.Spec.Unschedulable, n.Spec.Taints
	return kept
}

// running keeps since when containers run.
func running(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for i := range statuses {
		if now := statuses[i].State.Running; now != nil {
			kept = append(kept, corev1.ContainerStatus{State: corev1.ContainerState{Running: now}})
		}
	}
	return kept
}

// policies keeps of a NetworkPolicy what it says.
func policies(p *networkingv1.NetworkPolicy) any {
	return &networkingv1.NetworkPolicy{ObjectMeta: identity(&p.ObjectMeta), Spec: p.Spec}
}

// endpoints keeps of a Service's own slice which endpoints are ready. One without any, as all of a sleeping cluster are, says
// nothing, nor does one of endpoints that are no instances; it is kept as a slice again with its first that may be one.
func endpoints(s *discoveryv1.EndpointSlice) any {
	if endpointslice.IsOurs(s) {
		return ours(s)
	}
	if len(s.Endpoints) == 0 || len(s.Ports) != 0 && !stdslices.ContainsFunc(s.Ports, ofPostgres) {
		return &metadata{ObjectMeta: nothing, namespace: one(s.Namespace), name: s.Name, version: s.ResourceVersion}
	}
	kept := &discoveryv1.EndpointSlice{ObjectMeta: identity(&s.ObjectMeta), AddressType: s.AddressType}
	kept.Labels = map[string]string{discoveryv1.LabelServiceName: partOf(s.Name, s.Labels[discoveryv1.LabelServiceName])}
	for _, endpoint := range s.Endpoints {
		kept.Endpoints = append(kept.Endpoints, discoveryv1.Endpoint{
			Addresses: endpoint.Addresses, Conditions: discoveryv1.EndpointConditions{Ready: endpoint.Conditions.Ready},
		})
	}
	return kept
}

// ofPostgres reports whether a port is that of the instances.
func ofPostgres(port discoveryv1.EndpointPort) bool {
	return port.Port != nil && *port.Port == contract.PostgresPort
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
