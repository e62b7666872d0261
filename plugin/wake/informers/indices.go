package informers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// Fields that the informers find objects by.
const (
	byCluster = "cluster" // Services by their selector, slices of ours and pods by their label, other objects by their reference
	byService = "service" // a Service's own slices
	byReplica = "replica" // slices of ours by the gateway's pod that they lead to
	byPorts   = "ports"   // slices of ours by the port of the gateways that they name, and its neighbours
	byAddress = "address" // pods
)

// ofPooler is the prefix, before a Pooler's name, of the key of a Service whose selector names that Pooler.
const ofPooler = "pooler/"

// anyCluster is the key of a Service whose selector names no cluster.
const anyCluster = "*"

// Index has the indexer keep the fields.
func Index(ctx context.Context, indexer client.FieldIndexer) error { return index(ctx, indexer, kinds) }

func index(ctx context.Context, indexer client.FieldIndexer, kinds []kind) error {
	pod, service, slice := &corev1.Pod{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}
	type by struct {
		kind  client.Object
		field string
		of    client.IndexerFunc
	}
	fields := []by{
		{pod, byCluster, one(func(o client.Object) string { return o.GetLabels()[endpointslice.LabelCluster] })},
		{pod, byAddress, addressesOf},
		{service, byCluster, one(selectedBy)},
		{slice, byCluster, ofOurs(func(s *discoveryv1.EndpointSlice) string { return s.Labels[endpointslice.LabelCluster] })},
		{slice, byReplica, ofOurs(func(s *discoveryv1.EndpointSlice) string { return s.Labels[endpointslice.LabelReplica] })},
		{slice, byPorts, ofOurs(func(s *discoveryv1.EndpointSlice) string { return portsKey(endpointslice.PortOf(s)) })},
		{slice, byService, one(serviceOf)},
		{&cnpgv1.ScheduledBackup{}, byCluster, one(reference)},
	}
	for _, kind := range kinds {
		fields = append(fields, by{kind.object, byCluster, one(reference)})
	}
	for _, index := range fields {
		if err := indexer.IndexField(ctx, index.kind, index.field, index.of); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.kind, index.field, err)
		}
	}
	return nil
}

// Watch has the informers watch what the [Reader] finds, and returns that. It does not wait until they are in sync.
func Watch(ctx context.Context, informers cache.Cache, api client.Client, logger *slog.Logger) (Reader, error) {
	known, err := knownTo(api, logger)
	if err != nil {
		return Reader{}, err
	}
	if err := index(ctx, informers, known); err != nil {
		return Reader{}, err
	}
	for _, kind := range []client.Object{&cnpgv1.Cluster{}, &networkingv1.NetworkPolicy{}} {
		if _, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return Reader{}, fmt.Errorf("make an informer of %T: %w", kind, err)
		}
	}
	return Reader{informers, known}, nil
}

// one indexes an object by a key, unless that is empty.
func one(of func(client.Object) string) client.IndexerFunc {
	return func(o client.Object) []string {
		if key := of(o); key != "" {
			return []string{key}
		}
		return nil
	}
}

// portsKey is the same for 64 neighbours: keys of their own would take 2 kB for each cluster.
func portsKey(port uint16) string { return strconv.Itoa(int(port) / 64) }

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

// selectedBy returns the key of a Service: the cluster that its selector names, [ofPooler] with a Pooler, or
// [anyCluster]; empty if it cannot select instances.
func selectedBy(o client.Object) string {
	service, ok := o.(*corev1.Service)
	if !ok || !endpointslice.MayRoute(service) {
		return ""
	}
	if pooler := endpointslice.PoolerOf(service); pooler != "" {
		return ofPooler + pooler
	}
	return cmp.Or(service.Spec.Selector[endpointslice.LabelCluster], anyCluster)
}

func serviceOf(o client.Object) string {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok || endpointslice.IsOurs(slice) {
		return ""
	}
	return slice.Labels[discoveryv1.LabelServiceName]
}

func ofOurs(of func(*discoveryv1.EndpointSlice) string) client.IndexerFunc {
	return one(func(o client.Object) string {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok && endpointslice.IsOurs(slice) {
			return of(slice)
		}
		return ""
	})
}
