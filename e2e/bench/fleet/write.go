package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// writeLimit prints how many EndpointSlices a second this API server takes from a plain client, beside the whole fleet.
func (f *fleet) writeLimit(ctx context.Context) error {
	const name = "write-limit"
	if err := f.admin.Create(ctx, &corev1.Namespace{ObjectMeta: named("", name)}); err != nil {
		return fmt.Errorf("create a namespace: %w", err)
	}
	count := min(f.clusters, 5000)
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	began := time.Now()
	for i := range count {
		group.Go(func() error {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: named(name, fmt.Sprintf("orders-rw-wake-%d", i)), AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: ptr.To("node")}},
				Ports:     []discoveryv1.EndpointPort{{Name: ptr.To("postgres"), Port: ptr.To(int32(10000))}},
			}
			slice.Labels = map[string]string{discoveryv1.LabelServiceName: "orders-rw", discoveryv1.LabelManagedBy: "nobody"}
			if err := f.admin.Create(creating, slice); err != nil {
				return fmt.Errorf("create a slice: %w", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	took := time.Since(began)
	row("slices a second that the API server takes from a plain client", "%.0f (%d, %d at once)", float64(count)/took.Seconds(), count, writers)
	if err := f.admin.DeleteAllOf(ctx, &discoveryv1.EndpointSlice{}, client.InNamespace(name)); err != nil {
		return fmt.Errorf("delete the slices: %w", err)
	}
	return nil
}
