package informers

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// service is what is kept of a Service that may lead to a cluster's instances: whose it is, what it selects and where it is
// reached. It takes 192 bytes, and a corev1.Service that has no more in it with its map 980; a fleet has three of each cluster.
// [Reader] makes them of it.
type service struct {
	metadata
	uid     types.UID
	cluster string // whose instances alone it selects; empty: its selector names none
	deleted *metav1.Time
	owners  []metav1.OwnerReference
	// address is the ClusterIP, and addresses are the ClusterIPs.
	address   string
	addresses []string
	// spec is the rest, which many share. Of its selector the cluster is missing.
	spec *corev1.ServiceSpec
	// annotations are those that say whether it can be routed to the gateway; nil: none.
	annotations map[string]string
}

var _ client.Object = (*service)(nil)

// What the Services of a fleet say alike: all of one purpose the same, and those of a cluster whose they are.
var (
	specsOfAll     shared[*corev1.ServiceSpec]
	ownersOfBefore shared[[]metav1.OwnerReference]
)

// briefly makes what is kept of a Service. One that leads to no instances is kept as far as the informer needs it.
func briefly(s *corev1.Service) any {
	if !endpointslice.MayRoute(s) {
		return &metadata{ObjectMeta: nothing, namespace: one(s.Namespace), name: s.Name, version: s.ResourceVersion}
	}
	spec := &corev1.ServiceSpec{
		Type: s.Spec.Type, IPFamilies: s.Spec.IPFamilies, Selector: maps.Clone(s.Spec.Selector), PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		SessionAffinity: s.Spec.SessionAffinity, InternalTrafficPolicy: s.Spec.InternalTrafficPolicy,
		ExternalTrafficPolicy: s.Spec.ExternalTrafficPolicy, LoadBalancerClass: s.Spec.LoadBalancerClass,
	}
	for _, port := range s.Spec.Ports {
		spec.Ports = append(spec.Ports, corev1.ServicePort{Name: port.Name, Protocol: port.Protocol, Port: port.Port, TargetPort: port.TargetPort})
	}
	var owners []metav1.OwnerReference
	for _, owner := range s.OwnerReferences {
		owners = append(owners, metav1.OwnerReference{Kind: one(owner.Kind), UID: owner.UID})
	}
	cluster := spec.Selector[endpointslice.LabelCluster]
	delete(spec.Selector, endpointslice.LabelCluster)
	var annotations map[string]string
	for _, key := range endpointslice.Annotations() {
		if value, ok := s.Annotations[key]; ok {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[key] = value
		}
	}
	return &service{
		metadata: metadata{ObjectMeta: nothing, namespace: one(s.Namespace), name: s.Name, version: s.ResourceVersion},
		uid:      s.UID, cluster: partOf(s.Name, cluster), deleted: s.DeletionTimestamp, owners: ownersOfBefore.of(owners),
		address: s.Spec.ClusterIP, addresses: s.Spec.ClusterIPs, spec: specsOfAll.of(spec), annotations: annotations,
	}
}

// whole is the Service, as far as it is kept. What it points to is shared and must not be changed.
func (s *service) whole() corev1.Service {
	whole := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: s.name, UID: s.uid, ResourceVersion: s.version, DeletionTimestamp: s.deleted,
			OwnerReferences: s.owners, Annotations: s.annotations,
		},
		Spec: *s.spec,
	}
	whole.Spec.ClusterIP, whole.Spec.ClusterIPs = s.address, s.addresses
	if s.cluster != "" {
		whole.Spec.Selector = make(map[string]string, len(s.spec.Selector)+1)
		maps.Copy(whole.Spec.Selector, s.spec.Selector)
		whole.Spec.Selector[endpointslice.LabelCluster] = s.cluster
	}
	return whole
}

// GetUID returns the Service's.
func (s *service) GetUID() types.UID { return s.uid }

// GetDeletionTimestamp returns the Service's.
func (s *service) GetDeletionTimestamp() *metav1.Time { return s.deleted }

// GetOwnerReferences returns whose it is.
func (s *service) GetOwnerReferences() []metav1.OwnerReference { return s.owners }

// DeepCopyObject returns a copy, which shares what nobody changes.
func (s *service) DeepCopyObject() runtime.Object {
	service := *s
	return &service
}

// metadata is what is kept of an object that says nothing: what an informer needs to tell it from others, and its next change
// from none. It has no labels, so that the indices and every list by a label pass it over. It takes 64 bytes, and an
// EndpointSlice without anything in it 352; a fleet has as many as Services.
type metadata struct {
	*metav1.ObjectMeta
	namespace, name, version string
}

var _ client.Object = (*metadata)(nil)

// nothing is what all of them share; nobody changes what is read from informers.
var nothing = &metav1.ObjectMeta{}

// GetNamespace returns the object's.
func (u *metadata) GetNamespace() string { return u.namespace }

// GetName returns the object's.
func (u *metadata) GetName() string { return u.name }

// GetResourceVersion returns the version that the object had.
func (u *metadata) GetResourceVersion() string { return u.version }

// GetObjectKind returns none.
func (u *metadata) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns a copy.
func (u *metadata) DeepCopyObject() runtime.Object {
	metadata := *u
	return &metadata
}
