package informers

import (
	"context"
	"fmt"
	"net/netip"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/slices"
)

// Reader finds objects.
type Reader struct {
	client.Reader
	// ClusterStore, ServiceStore and SliceStore are the informers' of Clusters, Services and EndpointSlices.
	ClusterStore, ServiceStore, SliceStore Store
}

func list[L client.ObjectList](ctx context.Context, from client.Reader, into L, options ...client.ListOption) (L, error) {
	if err := from.List(ctx, into, options...); err != nil {
		return into, fmt.Errorf("list %T: %w", into, err)
	}
	return into, nil
}

// find finds what an index has by that key and is what is looked for: a key may be that of others, too.
func find[T any](ctx context.Context, in Store, index, key string, wanted func(*T) bool) ([]*T, error) {
	objects, err := in.ByIndex(ctx, index, key)
	if err != nil {
		return nil, fmt.Errorf("find %T by %s: %w", *new(T), index, err)
	}
	var found []*T
	for _, object := range objects {
		if typed, is := object.(*T); is && wanted(typed) {
			found = append(found, typed)
		}
	}
	return found, nil
}

func valuesOf[T any](pointers []*T) []T {
	values := make([]T, 0, len(pointers))
	for _, pointer := range pointers {
		values = append(values, *pointer)
	}
	return values
}

func carries(o *metav1.ObjectMeta, cluster types.NamespacedName) bool {
	return o.Namespace == cluster.Namespace && o.Labels[slices.LabelCluster] == cluster.Name
}

// Cluster reads a Cluster.
func (r Reader) Cluster(ctx context.Context, name types.NamespacedName) (*cnpgv1.Cluster, error) {
	var cluster cnpgv1.Cluster
	if err := r.Get(ctx, name, &cluster); err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	return &cluster, nil
}

// Clusters are all Clusters. They are the informer's own, since a list of a fleet's copies takes 20 MiB for a moment.
func (r Reader) Clusters(ctx context.Context) ([]*cnpgv1.Cluster, error) {
	objects, err := r.ClusterStore.All(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the Clusters: %w", err)
	}
	clusters := make([]*cnpgv1.Cluster, 0, len(objects))
	for _, object := range objects {
		if cluster, is := object.(*cnpgv1.Cluster); is {
			clusters = append(clusters, cluster)
		}
	}
	return clusters, nil
}

// Services are those that carry the cluster's label, as far as they are kept.
func (r Reader) Services(ctx context.Context, cluster types.NamespacedName) ([]corev1.Service, error) {
	found, err := find(ctx, r.ServiceStore, byCluster, clusterKey(cluster.Namespace, cluster.Name), func(s *service) bool {
		return s.namespace == cluster.Namespace && s.cluster == cluster.Name
	})
	services := make([]corev1.Service, 0, len(found))
	for _, kept := range found {
		services = append(services, kept.whole())
	}
	return services, err
}

// ServiceUID tells a Service from others that had its name; empty: none is known.
func (r Reader) ServiceUID(ctx context.Context, name types.NamespacedName) (types.UID, error) {
	object, err := r.ServiceStore.ByName(ctx, name)
	if err != nil {
		return "", fmt.Errorf("find Service %s: %w", name, err)
	}
	if kept, is := object.(*service); is {
		return kept.uid, nil
	}
	return "", nil
}

// Pods are the instances of the cluster, those that are being deleted too.
func (r Reader) Pods(ctx context.Context, cluster types.NamespacedName) ([]corev1.Pod, error) {
	found, err := list(ctx, r, &corev1.PodList{}, client.InNamespace(cluster.Namespace), client.MatchingFields{byCluster: cluster.Name})
	var instances []corev1.Pod
	for i := range found.Items {
		if slices.IsInstance(&found.Items[i]) {
			instances = append(instances, found.Items[i])
		}
	}
	return instances, err
}

// Slices are the EndpointSlices of the cluster's Services, ours and those of the Services' own that have endpoints.
func (r Reader) Slices(ctx context.Context, cluster types.NamespacedName) ([]discoveryv1.EndpointSlice, error) {
	found, err := find(ctx, r.SliceStore, byCluster, clusterKey(cluster.Namespace, cluster.Name), func(s *discoveryv1.EndpointSlice) bool {
		return carries(&s.ObjectMeta, cluster)
	})
	return valuesOf(found), err
}

// SlicesOf are the slices of ours that lead to a replica, of whatever cluster.
func (r Reader) SlicesOf(ctx context.Context, replica types.UID) ([]discoveryv1.EndpointSlice, error) {
	found, err := find(ctx, r.SliceStore, byReplica, string(replica), func(*discoveryv1.EndpointSlice) bool { return true })
	return valuesOf(found), err
}

// PodsAt are the pods of the namespace that have the address.
func (r Reader) PodsAt(ctx context.Context, namespace string, address netip.Addr) ([]corev1.Pod, error) {
	found, err := list(ctx, r, &corev1.PodList{}, client.InNamespace(namespace), client.MatchingFields{byAddress: address.Unmap().String()})
	return found.Items, err
}

// PodsIn are the pods of a namespace that are watched: in the plugin's own all of them.
func (r Reader) PodsIn(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	found, err := list(ctx, r, &corev1.PodList{}, client.InNamespace(namespace))
	return found.Items, err
}

// Naming are the Services whose slices of ours name a port of the gateways.
func (r Reader) Naming(ctx context.Context, port uint16) ([]types.UID, error) {
	found, err := find(ctx, r.SliceStore, byPorts, portsKey(port), func(s *discoveryv1.EndpointSlice) bool { return slices.PortOf(s) == port })
	var services []types.UID
	for _, slice := range found {
		services = append(services, slices.ServiceOf(slice))
	}
	return services, err
}
