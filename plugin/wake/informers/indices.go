package informers

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// Indices of the informers.
const (
	// byCluster finds what is of one of some clusters: Services by what they select, slices of ours and pods by their label.
	// byService finds the slices of one of some Services' own, byReplica those of a gateway's pod, byPorts those that name one of
	// some ports of the gateways, byAddress pods by address.
	byCluster = "cluster"
	byService = "service"
	byReplica = "replica"
	byPorts   = "ports"
	byAddress = "address"
)

// PodIndices are the fields that pods have to be asked by.
func PodIndices() map[string]client.IndexerFunc {
	return map[string]client.IndexerFunc{
		byCluster: func(o client.Object) []string {
			if name := o.GetLabels()[endpointslice.LabelCluster]; name != "" {
				return []string{name}
			}
			return nil
		},
		byAddress: addressesOf,
	}
}

func addressesOf(o client.Object) []string {
	pod, ok := o.(*corev1.Pod)
	if !ok || endpointslice.HasEnded(pod) {
		return nil
	}
	var addresses []string
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	return addresses
}

// ServiceIndexers are the indices of Services. One whose selector names no cluster is found by its namespace and no name.
func ServiceIndexers() toolscache.Indexers {
	return toolscache.Indexers{byCluster: func(object any) ([]string, error) {
		if s, ok := object.(*service); ok {
			return []string{bucket(s.namespace, s.cluster)}, nil
		}
		return nil, nil
	}}
}

// SliceIndexers are the indices of EndpointSlices.
func SliceIndexers() toolscache.Indexers {
	return toolscache.Indexers{
		byCluster: ofOurs(func(s *discoveryv1.EndpointSlice) string {
			return bucket(s.Namespace, s.Labels[endpointslice.LabelCluster])
		}),
		byService: func(object any) ([]string, error) {
			if slice, ok := object.(*discoveryv1.EndpointSlice); ok && !endpointslice.IsOurs(slice) {
				return []string{bucket(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])}, nil
			}
			return nil, nil
		},
		byReplica: ofOurs(func(s *discoveryv1.EndpointSlice) string { return s.Labels[endpointslice.LabelReplica] }),
		byPorts:   ofOurs(func(s *discoveryv1.EndpointSlice) string { return portsKey(endpointslice.PortOf(s)) }),
	}
}

// ofOurs makes an index of the slices that gateways made.
func ofOurs(key func(*discoveryv1.EndpointSlice) string) toolscache.IndexFunc {
	return func(object any) ([]string, error) {
		if slice, ok := object.(*discoveryv1.EndpointSlice); ok && endpointslice.IsOurs(slice) {
			return []string{key(slice)}, nil
		}
		return nil, nil
	}
}

// bucket is the same for a few clusters, or Services, of a fleet: a key of its own for each takes 260 bytes.
func bucket(namespace, name string) string {
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, namespace, "/", name)
	return strconv.FormatUint(uint64(hash.Sum32()%4096), 10)
}

// portsKey is the same for 64 neighbours.
func portsKey(port uint16) string { return strconv.Itoa(int(port) / 64) }

// Store is what an informer keeps, with its indices.
type Store interface {
	// ByIndex finds what an index has by that key.
	ByIndex(ctx context.Context, index, key string) ([]any, error)
	// Keys are those by which an index has anything.
	Keys(ctx context.Context, index string) ([]string, error)
	// ByName finds what has the name; nil: nothing.
	ByName(ctx context.Context, name types.NamespacedName) (any, error)
	// All are all that there are.
	All(ctx context.Context) ([]any, error)
}

// Index makes the informers keep the indices, and returns what asks by them.
func Index(ctx context.Context, informers cache.Cache) (Reader, error) {
	for name, function := range PodIndices() {
		if err := informers.IndexField(ctx, &corev1.Pod{}, name, function); err != nil {
			return Reader{}, fmt.Errorf("index pods by %s: %w", name, err)
		}
	}
	if _, err := informers.GetInformer(ctx, &networkingv1.NetworkPolicy{}, cache.BlockUntilSynced(false)); err != nil {
		return Reader{}, fmt.Errorf("make an informer of NetworkPolicies: %w", err)
	}
	clusters, err := Clusters(ctx, informers)
	if err != nil {
		return Reader{}, err
	}
	services, err := index(ctx, informers, &corev1.Service{}, ServiceIndexers())
	if err != nil {
		return Reader{}, err
	}
	endpointSlices, err := index(ctx, informers, &discoveryv1.EndpointSlice{}, SliceIndexers())
	return Reader{Reader: informers, ClusterStore: clusters, ServiceStore: services, SliceStore: endpointSlices}, err
}

// Clusters is what the informer of Clusters keeps.
func Clusters(ctx context.Context, informers cache.Informers) (Store, error) {
	return index(ctx, informers, &cnpgv1.Cluster{}, nil)
}

// index has an informer of all namespaces keep indices. The framework's own have two keys for each, one of the namespace and one
// of all, of which nobody here would ask by more than one.
func index(ctx context.Context, informers cache.Informers, kind client.Object, indexers toolscache.Indexers) (Store, error) {
	informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("make an informer of %T: %w", kind, err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("index %T: %T has no indexer", kind, informer)
	}
	if err := shared.AddIndexers(indexers); err != nil {
		return nil, fmt.Errorf("index %T: %w", kind, err)
	}
	return store{shared}, nil
}

// store is an informer's.
type store struct {
	informer toolscache.SharedIndexInformer
}

func (s store) ByIndex(ctx context.Context, index, key string) ([]any, error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	return s.informer.GetIndexer().ByIndex(index, key)
}

func (s store) Keys(ctx context.Context, index string) ([]string, error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	return s.informer.GetIndexer().ListIndexFuncValues(index), nil
}

func (s store) ByName(ctx context.Context, name types.NamespacedName) (any, error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	object, _, err := s.informer.GetIndexer().GetByKey(name.String())
	return object, err
}

func (s store) All(ctx context.Context) ([]any, error) {
	if err := s.synced(ctx); err != nil {
		return nil, err
	}
	return s.informer.GetIndexer().List(), nil
}

// synced waits until the informer has been told of everything that there is.
func (s store) synced(ctx context.Context) error {
	if !s.informer.HasSynced() && !toolscache.WaitForCacheSync(ctx.Done(), s.informer.HasSynced) {
		return fmt.Errorf("wait for an informer: %w", context.Cause(ctx))
	}
	return nil
}
