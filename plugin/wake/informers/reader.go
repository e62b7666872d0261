package informers

import (
	"context"
	"fmt"
	"net/netip"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// Stores are the informers' of those kinds.
type Stores struct{ Clusters, Services, Slices Store }

// Reader finds objects. There is no other way to those of the kinds that [ReadLive] names.
type Reader struct {
	ClusterReader
	services store[service]
	slices   store[discoveryv1.EndpointSlice]
	// informers have what is kept as the type that it is.
	informers client.Reader
}

// NewReader makes a reader.
func NewReader(informers client.Reader, stores Stores) Reader {
	return Reader{
		ClusterReader: ClusterReader{store[cnpgv1.Cluster]{stores.Clusters}}, services: store[service]{stores.Services},
		slices: store[discoveryv1.EndpointSlice]{stores.Slices}, informers: informers,
	}
}

// ClusterReader finds Clusters.
type ClusterReader struct{ clusters store[cnpgv1.Cluster] }

func list[L client.ObjectList](ctx context.Context, from client.Reader, into L, options ...client.ListOption) (L, error) {
	if err := from.List(ctx, into, options...); err != nil {
		return into, fmt.Errorf("list %T: %w", into, err)
	}
	return into, nil
}

func valuesOf[T any](pointers []*T) []T {
	values := make([]T, 0, len(pointers))
	for _, pointer := range pointers {
		values = append(values, *pointer)
	}
	return values
}

// Cluster reads a Cluster.
func (r Reader) Cluster(ctx context.Context, name types.NamespacedName) (*cnpgv1.Cluster, error) {
	var cluster cnpgv1.Cluster
	if err := r.informers.Get(ctx, name, &cluster); err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	return &cluster, nil
}

// Clusters are all Clusters. They are the informer's own, since a list of a fleet's copies takes 20 MiB for a moment.
func (r ClusterReader) Clusters(ctx context.Context) ([]*cnpgv1.Cluster, error) {
	return r.clusters.all(ctx, anyOf)
}

// ClustersIn are those of a namespace.
func (r ClusterReader) ClustersIn(ctx context.Context, namespace string) ([]*cnpgv1.Cluster, error) {
	return r.clusters.all(ctx, func(c *cnpgv1.Cluster) bool { return c.Namespace == namespace })
}

// Services are those that may select instances of the cluster, as far as they are kept: those whose selectors name it, and those
// whose selectors name none.
func (r Reader) Services(ctx context.Context, cluster types.NamespacedName) ([]corev1.Service, error) {
	var services []corev1.Service
	for _, named := range []string{cluster.Name, ""} {
		found, err := r.services.byIndex(ctx, byCluster, bucket(cluster.Namespace, named), func(s *service) bool {
			return s.namespace == cluster.Namespace && s.cluster == named
		})
		if err != nil {
			return nil, err
		}
		for _, kept := range found {
			services = append(services, kept.whole())
		}
	}
	return services, nil
}

// Concerned are the names of the clusters that a change of the Service, EndpointSlice or pod may matter to.
func (r Reader) Concerned(ctx context.Context, o client.Object) ([]types.NamespacedName, error) {
	namespace, name := o.GetNamespace(), o.GetLabels()[endpointslice.LabelCluster]
	if slice, ok := o.(*discoveryv1.EndpointSlice); ok && !endpointslice.IsOurs(slice) {
		kept, err := r.services.byName(ctx, types.NamespacedName{Namespace: namespace, Name: slice.Labels[discoveryv1.LabelServiceName]})
		if err != nil {
			return nil, fmt.Errorf("find the Service of EndpointSlice %s/%s: %w", namespace, slice.Name, err)
		}
		if kept == nil {
			return nil, nil
		}
		o = kept
	}
	if s, ok := o.(*service); ok {
		if name = s.cluster; name == "" {
			clusters, err := r.ClustersIn(ctx, namespace)
			var names []types.NamespacedName
			for _, cluster := range clusters {
				names = append(names, client.ObjectKeyFromObject(cluster))
			}
			return names, err
		}
	}
	if name == "" {
		return nil, nil
	}
	return []types.NamespacedName{{Namespace: namespace, Name: name}}, nil
}

// ServiceUID tells a Service from others that had its name; empty: none is known.
func (r Reader) ServiceUID(ctx context.Context, name types.NamespacedName) (types.UID, error) {
	kept, err := r.services.byName(ctx, name)
	if err != nil || kept == nil {
		return "", err
	}
	return kept.uid, nil
}

// Pods are the instances of the cluster, those that are being deleted too.
func (r Reader) Pods(ctx context.Context, cluster types.NamespacedName) ([]corev1.Pod, error) {
	found, err := list(ctx, r.informers, &corev1.PodList{}, client.InNamespace(cluster.Namespace), client.MatchingFields{byCluster: cluster.Name})
	var instances []corev1.Pod
	for i := range found.Items {
		if endpointslice.IsInstance(&found.Items[i]) {
			instances = append(instances, found.Items[i])
		}
	}
	return instances, err
}

// Slices are the EndpointSlices of ours for the cluster, and those of the Services' own that have endpoints.
func (r Reader) Slices(ctx context.Context, cluster types.NamespacedName, services []corev1.Service) ([]discoveryv1.EndpointSlice, error) {
	found, err := r.slices.byIndex(ctx, byCluster, bucket(cluster.Namespace, cluster.Name), func(s *discoveryv1.EndpointSlice) bool {
		return s.Namespace == cluster.Namespace && s.Labels[endpointslice.LabelCluster] == cluster.Name
	})
	if err != nil {
		return nil, err
	}
	for i := range services {
		service := &services[i]
		own, err := r.slices.byIndex(ctx, byService, bucket(service.Namespace, service.Name), func(s *discoveryv1.EndpointSlice) bool {
			return s.Namespace == service.Namespace && s.Labels[discoveryv1.LabelServiceName] == service.Name
		})
		if err != nil {
			return nil, err
		}
		found = append(found, own...)
	}
	return valuesOf(found), nil
}

// SlicesOf are the slices of ours that lead to a replica, of whatever cluster.
func (r Reader) SlicesOf(ctx context.Context, replica types.UID) ([]discoveryv1.EndpointSlice, error) {
	found, err := r.slices.byIndex(ctx, byReplica, string(replica), anyOf)
	return valuesOf(found), err
}

// Replicas are the UIDs of the gateways' pods that slices of ours lead to, in no order.
func (r Reader) Replicas(ctx context.Context) ([]types.UID, error) {
	keys, err := r.slices.keys(ctx, byReplica)
	if err != nil {
		return nil, fmt.Errorf("list the replicas that slices lead to: %w", err)
	}
	replicas := make([]types.UID, 0, len(keys))
	for _, key := range keys {
		replicas = append(replicas, types.UID(key))
	}
	return replicas, nil
}

// Leads reports whether any slice of ours leads to a replica.
func (r Reader) Leads(ctx context.Context, replica types.UID) (bool, error) {
	found, err := r.slices.byIndex(ctx, byReplica, string(replica), anyOf)
	return len(found) != 0, err
}

// OurSlices are those of ours, of whatever cluster and replica. They are the informer's own.
func (r Reader) OurSlices(ctx context.Context) ([]*discoveryv1.EndpointSlice, error) {
	return r.slices.all(ctx, endpointslice.IsOurs)
}

// PodsAt are the pods of the namespace that have the address.
func (r Reader) PodsAt(ctx context.Context, namespace string, address netip.Addr) ([]corev1.Pod, error) {
	found, err := list(ctx, r.informers, &corev1.PodList{}, client.InNamespace(namespace), client.MatchingFields{byAddress: address.Unmap().String()})
	return found.Items, err
}

// PodsIn are the pods of a namespace that are watched: in the plugin's own all of them.
func (r Reader) PodsIn(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	found, err := list(ctx, r.informers, &corev1.PodList{}, client.InNamespace(namespace))
	return found.Items, err
}

// Node reads a node.
func (r Reader) Node(ctx context.Context, name string) (*corev1.Node, error) {
	var node corev1.Node
	if err := r.informers.Get(ctx, types.NamespacedName{Name: name}, &node); err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	return &node, nil
}

// NetworkPolicies are those of a namespace.
func (r Reader) NetworkPolicies(ctx context.Context, namespace string) ([]networkingv1.NetworkPolicy, error) {
	found, err := list(ctx, r.informers, &networkingv1.NetworkPolicyList{}, client.InNamespace(namespace))
	return found.Items, err
}

// Naming are the Services whose slices of ours name a port of the gateways.
func (r Reader) Naming(ctx context.Context, port uint16) ([]types.UID, error) {
	found, err := r.slices.byIndex(ctx, byPorts, portsKey(port), func(s *discoveryv1.EndpointSlice) bool { return endpointslice.PortOf(s) == port })
	var services []types.UID
	for _, slice := range found {
		services = append(services, endpointslice.ServiceOf(slice))
	}
	return services, err
}
