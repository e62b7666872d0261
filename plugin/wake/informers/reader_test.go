package informers

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// crowded has everything under every key.
type crowded []any

func (c crowded) ByIndex(context.Context, string, string) ([]any, error) { return c, nil }

func (c crowded) Keys(context.Context, string) ([]string, error) { return nil, nil }

func (c crowded) ByName(context.Context, types.NamespacedName) (any, error) { return nil, nil }

func (c crowded) All(context.Context) ([]any, error) { return c, nil }

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
	reader := Reader{
		ServiceStore: crowded{
			selects("shop", "orders"), selects("shop", "sales"), selects("bank", "orders"),
		},
		SliceStore: crowded{routed("shop", "orders", 10000), routed("shop", "sales", 10001), routed("bank", "orders", 10002)},
	}
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
