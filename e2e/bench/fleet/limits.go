package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
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

// tooFewPorts starts a plugin with ports for a part of the fleet, in a range that nobody has used.
func (f *fleet) tooFewPorts(ctx context.Context) error {
	count := max(f.clusters/10, 2) * led
	return f.tooFew(ctx, "too few ports", count, "no_port", fmt.Sprintf("GATEWAY_PORTS=%d-%d", 29999-count+1, 29999))
}

// tooFewDescriptors starts a plugin with file descriptors for a part of the fleet.
func (f *fleet) tooFewDescriptors(ctx context.Context) error {
	count := max(f.clusters/10, 2) * led
	var all syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &all); err != nil {
		return fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	few := syscall.Rlimit{Cur: uint64(count + kept), Max: uint64(count + kept)}
	if few.Cur > all.Max {
		return nil
	}
	f.few = &few
	defer func() { f.few = nil }()
	return f.tooFew(ctx, "too few file descriptors", count, "no_descriptor")
}

// tooFew waits until the plugin has armed as many as it can, and shows that it says so and stays of use.
func (f *fleet) tooFew(ctx context.Context, what string, want int, says string, environment ...string) error {
	pod, err := f.pod(ctx, "scale-to-zero-"+rand.String(5))
	if err != nil {
		return err
	}
	p, err := f.start(pod, "plugin-"+says+".log", environment...)
	if err != nil {
		return err
	}
	if err := f.armed(ctx, what+": as many as there are", p, want); err != nil {
		return err
	}
	if err := scenario.Rest(ctx, quietFor); err != nil {
		return err
	}
	have, err := p.listening()
	if err != nil {
		return err
	}
	from := time.Now()
	if err := scenario.Rest(ctx, quietFor); err != nil {
		return err
	}
	asked, err := f.requests(from)
	if err != nil {
		return err
	}
	lines, first, err := p.says(says)
	if err != nil {
		return err
	}
	row("... listeners, of "+fmt.Sprint(f.clusters*led), "%d; file descriptors %d", have, p.openDescriptors())
	row("... lines of its log that say why", "%d, such as `%s`", lines, first)
	row(fmt.Sprintf("... requests in %s", quietFor), "%s", summary(asked))
	return f.kill(ctx, p)
}
