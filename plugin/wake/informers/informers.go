// Package informers says what the plugin keeps in memory of the objects that it watches, and how it finds them. A fleet
// has thousands of Services, pods and EndpointSlices, so the informers drop what is large and what no decision needs.
package informers

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// ByObject says what the informers watch and keep. namespace is the plugin's own, where they watch every pod, because
// the gateways may run in the operator's pods, whose labels are unknown.
//
// What is read from these informers is shared and must not be changed.
func ByObject(namespace string) map[client.Object]cache.ByObject {
	cluster := labels.NewSelector()
	if has, err := labels.NewRequirement(endpointslice.LabelCluster, "exists", nil); err == nil {
		cluster = cluster.Add(*has)
	}
	shared := ptr.To(true)
	return map[client.Object]cache.ByObject{
		&cnpgv1.Cluster{}: {Transform: without(ofCluster), UnsafeDisableDeepCopy: shared},
		// Anybody may have made a Service that leads to a cluster's instances, and its slices carry the labels that it has.
		&corev1.Service{}: {Transform: without(ofService), UnsafeDisableDeepCopy: shared},
		&corev1.Pod{}: {
			Namespaces: map[string]cache.Config{
				cache.AllNamespaces: {LabelSelector: cluster}, namespace: {LabelSelector: labels.Everything()},
			},
			Transform: without(ofPod), UnsafeDisableDeepCopy: shared,
		},
		&corev1.Node{}:                {Transform: without(ofNode), UnsafeDisableDeepCopy: shared},
		&discoveryv1.EndpointSlice{}:  {Transform: without(ofSlice), UnsafeDisableDeepCopy: shared},
		&networkingv1.NetworkPolicy{}: {Transform: cache.TransformStripManagedFields(), UnsafeDisableDeepCopy: shared},
		&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{namespace: {
				LabelSelector: labels.SelectorFromSet(labels.Set{ports.Label: ports.LabelValue}),
			}},
			UnsafeDisableDeepCopy: shared,
		},
	}
}

// ReadLive returns the kinds that the manager's client must read from the API server, because the informers keep only
// parts of them. Without a gateway none is watched, and a cached read would start an informer of all such objects.
func ReadLive() []client.Object {
	return []client.Object{
		&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Pod{}, &corev1.Node{}, &networkingv1.NetworkPolicy{},
	}
}

// without makes an informer's transformation of what drops parts of an object.
func without[T any](drop func(*T)) toolscache.TransformFunc {
	return func(object any) (any, error) {
		whole, ok := object.(*T)
		if !ok {
			return object, nil // an informer's marker of something that was missed
		}
		kept := *whole // an informer may transform what others already read
		drop(&kept)
		return &kept, nil
	}
}

// fieldsOfInterest are those of a Cluster of which the plugin asks who has set them.
var fieldsOfInterest = [][]byte{
	[]byte(`"f:` + contract.AnnotationHibernation + `"`), []byte(`"f:` + contract.AnnotationFencedInstances + `"`),
}

// ofCluster keeps what the plugin reads, and of the managed fields the entries that say who turned hibernation on and
// who set the fence.
func ofCluster(c *cnpgv1.Cluster) {
	c.ManagedFields, c.Labels, c.Annotations = entriesWith(c.ManagedFields, fieldsOfInterest...), nil, maps.Clone(c.Annotations)
	if !contract.FenceApplied(c.Annotations) { // otherwise it shows that a person applied the fence
		delete(c.Annotations, corev1.LastAppliedConfigAnnotation)
	}
	delete(c.Annotations, contract.AnnotationCounts)
	c.Spec = cnpgv1.ClusterSpec{
		Instances: c.Spec.Instances, Plugins: c.Spec.Plugins, Resources: c.Spec.Resources, Probes: c.Spec.Probes,
		ServiceAccountName: c.Spec.ServiceAccountName, NodeMaintenanceWindow: c.Spec.NodeMaintenanceWindow,
		InheritedMetadata: c.Spec.InheritedMetadata, PodSelectorRefs: c.Spec.PodSelectorRefs, Backup: c.Spec.Backup,
		PostgresConfiguration: cnpgv1.PostgresConfiguration{PgHBA: c.Spec.PostgresConfiguration.PgHBA},
	}
	c.Status = cnpgv1.ClusterStatus{
		CurrentPrimary: c.Status.CurrentPrimary, TargetPrimary: c.Status.TargetPrimary, Conditions: c.Status.Conditions,
		Phase: c.Status.Phase, PhaseReason: c.Status.PhaseReason, SecretsResourceVersion: c.Status.SecretsResourceVersion,
		CommitHash: c.Status.CommitHash, PluginStatus: c.Status.PluginStatus,
	}
}

func entriesWith(entries []metav1.ManagedFieldsEntry, fields ...[]byte) (kept []metav1.ManagedFieldsEntry) {
	for _, entry := range entries {
		contains := func(field []byte) bool { return bytes.Contains(entry.FieldsV1.GetRawBytes(), field) }
		if slices.ContainsFunc(fields, contains) {
			kept = append(kept, entry)
		}
	}
	return kept
}

// ofService keeps the name of a Service that leads to no instances.
func ofService(s *corev1.Service) {
	annotations := s.Annotations
	s.ManagedFields, s.Labels, s.Annotations, s.Status = nil, nil, nil, corev1.ServiceStatus{}
	for name, value := range annotations {
		if endpointslice.ReadsAnnotation(name) {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, value)
		}
	}
	if !endpointslice.MayRoute(s) {
		s.Annotations, s.OwnerReferences, s.Spec = nil, nil, corev1.ServiceSpec{}
	}
}

// ofPod keeps the state of a pod, where it is, and what delays PostgreSQL there.
func ofPod(p *corev1.Pod) {
	p.ManagedFields, p.Annotations = nil, nil
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, Tolerations: p.Spec.Tolerations,
		Containers:     cnpgi.OnlySidecar(p),       // a metric shows which version runs where
		InitContainers: cnpgi.SlowStartupProbes(p), // an Event tells of what a wake waited for
	}
}

// ofNode keeps whether pods are to leave the node.
func ofNode(n *corev1.Node) { n.ManagedFields, n.Annotations, n.Status = nil, nil, corev1.NodeStatus{} }

// ofSlice keeps the name of a Service's own slice without endpoints that may be instances, as all of a sleeping cluster
// are.
func ofSlice(s *discoveryv1.EndpointSlice) {
	s.ManagedFields = nil
	ofPostgres := func(port discoveryv1.EndpointPort) bool {
		return port.Port != nil && *port.Port == contract.PostgresPort
	}
	others := len(s.Endpoints) == 0 || len(s.Ports) != 0 && !slices.ContainsFunc(s.Ports, ofPostgres)
	if others && !endpointslice.IsOurs(s) {
		s.Labels, s.Annotations, s.OwnerReferences, s.Endpoints, s.Ports = nil, nil, nil, nil, nil
	}
}

// remembering is a mapper that caches mappings. A cache that watches namespaces separately asks for one at every list
// of pods, which took a tenth of the processor's time while the gateway was attacked.
type remembering struct {
	apimeta.RESTMapper
	known keyed.Map[schema.GroupVersionKind, *apimeta.RESTMapping]
}

// NewMapper makes the manager's mapper.
func NewMapper(config *rest.Config, client *http.Client) (apimeta.RESTMapper, error) {
	mapper, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return nil, fmt.Errorf("make the mapper of kinds: %w", err)
	}
	return remember(mapper), nil
}

func remember(mapper apimeta.RESTMapper) *remembering { return &remembering{RESTMapper: mapper} }

// RESTMapping finds a kind's resource and scope, which never change.
func (m *remembering) RESTMapping(kind schema.GroupKind, versions ...string) (*apimeta.RESTMapping, error) {
	if len(versions) != 1 {
		return m.RESTMapper.RESTMapping(kind, versions...) // it stands for the mapper
	}
	key := kind.WithVersion(versions[0])
	if known := m.known.Get(key); known != nil {
		return known, nil
	}
	found, err := m.RESTMapper.RESTMapping(kind, versions...)
	if err == nil {
		m.known.Set(key, found)
	}
	return found, err // it stands for the mapper
}
