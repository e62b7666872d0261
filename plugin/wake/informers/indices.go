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

// ofPooler precedes the name of the Pooler by which the Services are found whose selectors name it.
const ofPooler = "pooler/"

// anyCluster is by which Services are found whose selector names no cluster.
const anyCluster = "*"

// Index has the indexer keep the fields.
func Index(ctx context.Context, indexer client.FieldIndexer) error { return index(ctx, indexer, kinds) }

func index(ctx context.Context, indexer client.FieldIndexer, kinds []kind) error {
	pods, services, slices := &corev1.Pod{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}
	for _, index := range []struct {
		kind  client.Object
		field string
		of    client.IndexerFunc
	}{
		{pods, byCluster, labelOf(endpointslice.LabelCluster)},
		{pods, byAddress, addressesOf},
		{services, byCluster, func(o client.Object) []string { return unlessEmpty(selectedBy(o)) }},
		{slices, byCluster, ofOurs(labelOf(endpointslice.LabelCluster))},
		{slices, byReplica, ofOurs(labelOf(endpointslice.LabelReplica))},
		{slices, byPorts, ofOurs(portsOf)},
		{slices, byService, serviceOf},
		{&cnpgv1.ScheduledBackup{}, byCluster, referenced},
	} {
		if err := indexer.IndexField(ctx, index.kind, index.field, index.of); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.kind, index.field, err)
		}
	}
	for _, kind := range kinds {
		if err := indexer.IndexField(ctx, kind.object, byCluster, referenced); err != nil {
			return fmt.Errorf("index %T by its cluster: %w", kind.object, err)
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

func unlessEmpty(value string) []string {
	if value == "" {
		return nil
	}
	return []string{value}
}

func labelOf(key string) client.IndexerFunc {
	return func(o client.Object) []string { return unlessEmpty(o.GetLabels()[key]) }
}

// portsKey is the same for 64 neighbours: keys of their own would take 2 kB for each cluster.
func portsKey(port uint16) string { return strconv.Itoa(int(port) / 64) }

func portsOf(o client.Object) []string {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	return []string{portsKey(endpointslice.PortOf(slice))}
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

// selectedBy is the cluster whose instances alone a Service may select, [ofPooler] with the Pooler whose, [anyCluster],
// or empty if it selects none.
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

// serviceOf is the Service of its own slice.
func serviceOf(o client.Object) []string {
	slice, ok := o.(*discoveryv1.EndpointSlice)
	if !ok || endpointslice.IsOurs(slice) {
		return nil
	}
	return unlessEmpty(slice.Labels[discoveryv1.LabelServiceName])
}

// ofOurs indexes only the slices that gateways made.
func ofOurs(of client.IndexerFunc) client.IndexerFunc {
	return func(o client.Object) []string {
		if slice, ok := o.(*discoveryv1.EndpointSlice); ok && endpointslice.IsOurs(slice) {
			return of(o)
		}
		return nil
	}
}
