package informers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// Reader finds objects that the informers keep.
type Reader struct {
	informers client.Reader
	kinds     []kind // that there are
}

// NewReader makes a reader of what has the fields of [Index].
func NewReader(informers client.Reader) Reader { return Reader{informers, kinds} }

func list[L client.ObjectList](ctx context.Context, from Reader, into L, options ...client.ListOption) (L, error) {
	if err := from.informers.List(ctx, into, options...); err != nil {
		return into, fmt.Errorf("list %T: %w", into, err)
	}
	return into, nil
}

// of finds the objects of a cluster.
func of(cluster types.NamespacedName) []client.ListOption {
	return []client.ListOption{client.InNamespace(cluster.Namespace), client.MatchingFields{byCluster: cluster.Name}}
}

// Cluster reads a Cluster.
func (r Reader) Cluster(ctx context.Context, name types.NamespacedName) (*cnpgv1.Cluster, error) {
	var cluster cnpgv1.Cluster
	if err := r.informers.Get(ctx, name, &cluster); err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	return &cluster, nil
}

// Clusters are those of a namespace; empty: all.
func (r Reader) Clusters(ctx context.Context, namespace string) ([]cnpgv1.Cluster, error) {
	found, err := list(ctx, r, &cnpgv1.ClusterList{}, client.InNamespace(namespace))
	return found.Items, err
}

// ClusterNames are those of the Clusters of a namespace; empty: of all.
func (r Reader) ClusterNames(ctx context.Context, namespace string) ([]types.NamespacedName, error) {
	clusters, err := r.Clusters(ctx, namespace)
	names := make([]types.NamespacedName, len(clusters))
	for i := range clusters {
		names[i] = client.ObjectKeyFromObject(&clusters[i])
	}
	return names, err
}

// Services returns those that may select instances of the cluster or pods of its Poolers: their selectors name the
// cluster or one of its Poolers, or no cluster at all.
func (r Reader) Services(ctx context.Context, cluster types.NamespacedName) ([]corev1.Service, error) {
	selected := []string{cluster.Name, anyCluster}
	poolers, err := r.Poolers(ctx, cluster)
	for i := range poolers {
		selected = append(selected, ofPooler+poolers[i].Name)
	}
	var services []corev1.Service
	for _, key := range selected {
		by := client.MatchingFields{byCluster: key}
		found, failed := list(ctx, r, &corev1.ServiceList{}, client.InNamespace(cluster.Namespace), by)
		if failed != nil {
			return nil, failed
		}
		services = append(services, found.Items...)
	}
	return services, err
}

// Poolers are those of the cluster; none if the API server does not have the kind.
func (r Reader) Poolers(ctx context.Context, cluster types.NamespacedName) ([]cnpgv1.Pooler, error) {
	if !r.watchesPoolers() {
		return nil, nil
	}
	found, err := list(ctx, r, &cnpgv1.PoolerList{}, of(cluster)...)
	return found.Items, err
}

func (r Reader) watchesPoolers() bool {
	return slices.ContainsFunc(r.kinds, func(k kind) bool { return k.object == poolers.object })
}

// Concerned are the names of the clusters that a change of the object may matter to.
func (r Reader) Concerned(ctx context.Context, o client.Object) ([]types.NamespacedName, error) {
	namespace, name := o.GetNamespace(), o.GetLabels()[endpointslice.LabelCluster]
	switch object := o.(type) {
	case *corev1.Service:
		name = selectedBy(object)
	case *discoveryv1.EndpointSlice:
		if endpointslice.IsOurs(object) {
			break
		}
		of := types.NamespacedName{Namespace: namespace, Name: object.Labels[discoveryv1.LabelServiceName]}
		service, err := r.service(ctx, of)
		if err != nil {
			return nil, fmt.Errorf("find the Service of EndpointSlice %s/%s: %w", namespace, object.Name, err)
		}
		name = selectedBy(service)
	default:
		name = cmp.Or(reference(o), name)
	}
	if pooler, ok := strings.CutPrefix(name, ofPooler); ok {
		var of cnpgv1.Pooler
		key := types.NamespacedName{Namespace: namespace, Name: pooler}
		if r.watchesPoolers() {
			if err := r.informers.Get(ctx, key, &of); client.IgnoreNotFound(err) != nil {
				return nil, fmt.Errorf("read Pooler %s: %w", key, err)
			}
		}
		name = of.Spec.Cluster.Name
	}
	switch name {
	case "":
		return nil, nil
	case anyCluster:
		return r.ClusterNames(ctx, namespace)
	}
	return []types.NamespacedName{{Namespace: namespace, Name: name}}, nil
}

// service reads a Service, which is empty if none is known.
func (r Reader) service(ctx context.Context, name types.NamespacedName) (*corev1.Service, error) {
	var service corev1.Service
	if err := r.informers.Get(ctx, name, &service); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Service %s: %w", name, err)
	}
	return &service, nil
}

// ServiceUID tells a Service from others that had its name; empty: none is known.
func (r Reader) ServiceUID(ctx context.Context, name types.NamespacedName) (types.UID, error) {
	service, err := r.service(ctx, name)
	if err != nil {
		return "", err
	}
	return service.UID, nil
}

// Pods are the instances of the cluster, those that are being deleted too.
func (r Reader) Pods(ctx context.Context, cluster types.NamespacedName) ([]corev1.Pod, error) {
	return r.podsOf(ctx, cluster, endpointslice.IsInstance)
}

// PoolerPods are the pods of the cluster's Poolers, those that are being deleted too.
func (r Reader) PoolerPods(ctx context.Context, cluster types.NamespacedName) ([]corev1.Pod, error) {
	return r.podsOf(ctx, cluster, endpointslice.IsPooler)
}

func (r Reader) podsOf(
	ctx context.Context, cluster types.NamespacedName, is func(*corev1.Pod) bool,
) ([]corev1.Pod, error) {
	found, err := list(ctx, r, &corev1.PodList{}, of(cluster)...)
	return slices.DeleteFunc(found.Items, func(p corev1.Pod) bool { return !is(&p) }), err
}

// Schedules are the ScheduledBackups of the cluster.
func (r Reader) Schedules(ctx context.Context, cluster types.NamespacedName) ([]cnpgv1.ScheduledBackup, error) {
	found, err := list(ctx, r, &cnpgv1.ScheduledBackupList{}, of(cluster)...)
	return found.Items, err
}

// Slices are the EndpointSlices of ours for the cluster, and those of the Services' own that have endpoints.
func (r Reader) Slices(
	ctx context.Context, cluster types.NamespacedName, services []corev1.Service,
) ([]discoveryv1.EndpointSlice, error) {
	found, err := r.slices(ctx, byCluster, cluster.Name, client.InNamespace(cluster.Namespace))
	if err != nil {
		return nil, err
	}
	for i := range services {
		own, err := r.slices(ctx, byService, services[i].Name, client.InNamespace(services[i].Namespace))
		if err != nil {
			return nil, err
		}
		found = append(found, own...)
	}
	return found, nil
}

func (r Reader) slices(
	ctx context.Context, by, key string, options ...client.ListOption,
) ([]discoveryv1.EndpointSlice, error) {
	found, err := list(ctx, r, &discoveryv1.EndpointSliceList{}, append(options, client.MatchingFields{by: key})...)
	return found.Items, err
}

// SlicesOf are the slices of ours that lead to a replica, of whatever cluster.
func (r Reader) SlicesOf(ctx context.Context, replica types.UID) ([]discoveryv1.EndpointSlice, error) {
	return r.slices(ctx, byReplica, string(replica))
}

// Leads reports whether any slice of ours leads to a replica.
func (r Reader) Leads(ctx context.Context, replica types.UID) (bool, error) {
	found, err := r.slices(ctx, byReplica, string(replica), client.Limit(1))
	return len(found) != 0, err
}

// OurSlices are those of ours, of whatever cluster and replica.
func (r Reader) OurSlices(ctx context.Context) ([]discoveryv1.EndpointSlice, error) {
	found, err := list(ctx, r, &discoveryv1.EndpointSliceList{})
	return slices.DeleteFunc(found.Items, func(s discoveryv1.EndpointSlice) bool { return !endpointslice.IsOurs(&s) }), err
}

// PodsAt are the pods of the namespace that have the address.
func (r Reader) PodsAt(ctx context.Context, namespace string, address netip.Addr) ([]corev1.Pod, error) {
	at := client.MatchingFields{byAddress: address.Unmap().String()}
	found, err := list(ctx, r, &corev1.PodList{}, client.InNamespace(namespace), at)
	return found.Items, err
}

// PodsIn are the pods of a namespace that are watched: in the plugin's own all of them.
func (r Reader) PodsIn(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	found, err := list(ctx, r, &corev1.PodList{}, client.InNamespace(namespace))
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
	found, err := list(ctx, r, &networkingv1.NetworkPolicyList{}, client.InNamespace(namespace))
	return found.Items, err
}

// Naming are the Services whose slices of ours name a port of the gateways.
func (r Reader) Naming(ctx context.Context, port uint16) ([]types.UID, error) {
	found, err := r.slices(ctx, byPorts, portsKey(port))
	var services []types.UID
	for i := range found {
		if endpointslice.PortOf(&found[i]) == port {
			services = append(services, endpointslice.ServiceOf(&found[i]))
		}
	}
	return services, err
}
