package informers

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// crowded has everything under every key.
type crowded struct {
	toolscache.Indexer
	all []any
}

func (c crowded) ByIndex(string, string) ([]any, error) { return c.all, nil }

func (c crowded) List() []any { return c.all }

func keeps(all ...any) Store {
	return func(context.Context) (toolscache.Indexer, error) { return crowded{all: all}, nil }
}

func TestAKeyMayBeThatOfOthers(t *testing.T) {
	t.Parallel()
	of := func(namespace, cluster string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: cluster + "-rw", Labels: map[string]string{endpointslice.LabelCluster: cluster}}
	}
	selects := func(namespace, cluster string) any {
		spec := corev1.ServiceSpec{
			Selector: map[string]string{endpointslice.LabelCluster: cluster}, Ports: []corev1.ServicePort{{Port: 5432}},
		}
		return briefly(&corev1.Service{ObjectMeta: of(namespace, cluster), Spec: spec})
	}
	routed := func(namespace, cluster string, port int32) *discoveryv1.EndpointSlice {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: of(namespace, cluster), Ports: []discoveryv1.EndpointPort{{Port: ptr.To(port)}}}
		slice.OwnerReferences = []metav1.OwnerReference{{Kind: "Service", UID: types.UID(namespace + "/" + cluster)}}
		return slice
	}
	reader := NewReader(nil, Stores{
		Services: keeps(selects("shop", "orders"), selects("shop", "sales"), selects("bank", "orders")),
		Slices:   keeps(routed("shop", "orders", 10000), routed("shop", "sales", 10001), routed("bank", "orders", 10002)),
	})
	orders := types.NamespacedName{Namespace: "shop", Name: "orders"}
	services, err := reader.Services(t.Context(), orders)
	if err != nil || len(services) != 1 || services[0].Namespace != "shop" || services[0].Name != "orders-rw" {
		t.Errorf("the cluster's Services: %v, %v", services, err)
	}
	found, err := reader.Slices(t.Context(), orders, nil)
	if err != nil || len(found) != 1 || endpointslice.PortOf(&found[0]) != 10000 {
		t.Errorf("the cluster's slices: %v, %v", found, err)
	}
	naming, err := reader.Naming(t.Context(), 10002)
	if diff := cmp.Diff([]types.UID{"bank/orders"}, naming); err != nil || diff != "" {
		t.Errorf("whose slices name the port: %v (-want +got):\n%s", err, diff)
	}
}

func TestReader_passesOverWhatSaysNothing(t *testing.T) {
	t.Parallel()
	metadataOf := func(name string) any {
		return &metadata{ObjectMeta: nothing, namespace: "shop", name: name, version: "1"}
	}
	ours := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "ours", Labels: map[string]string{discoveryv1.LabelManagedBy: endpointslice.ManagedBy},
	}}
	service := func(context.Context) (toolscache.Indexer, error) {
		kept := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, ServiceIndexers())
		return kept, kept.Add(metadataOf("empty"))
	}
	reader := NewReader(nil, Stores{Services: service, Slices: keeps(metadataOf("empty"), ours)})
	slices, err := reader.OurSlices(t.Context())
	if err != nil || len(slices) != 1 || slices[0] != ours {
		t.Errorf("the slices of ours: %v, %v", slices, err)
	}
	uid, err := reader.ServiceUID(t.Context(), types.NamespacedName{Namespace: "shop", Name: "empty"})
	if err != nil || uid != "" {
		t.Errorf("the Service's UID: %q, %v", uid, err)
	}
}
