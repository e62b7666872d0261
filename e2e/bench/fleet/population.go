package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// writers is how many objects are made at once.
const writers = 16

// fleet is the clusters, and the plugin that they are measured with.
type fleet struct {
	options
	*server
	progress *cluster.Progress
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// cluster is the name of a cluster.
func (f *fleet) cluster(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprintf("tenant-%d", i%f.namespaces), Name: fmt.Sprintf("orders-%d", i)}
}

// populate makes every object that the plugin reads.
func (f *fleet) populate(ctx context.Context) error {
	f.progress.Say("make %d clusters", f.clusters)
	if err := f.grant(ctx); err != nil {
		return err
	}
	for i := range min(f.namespaces, f.clusters) {
		if err := f.admin.Create(ctx, &corev1.Namespace{ObjectMeta: named("", f.cluster(i).Namespace)}); err != nil {
			return fmt.Errorf("create a namespace: %w", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range f.clusters {
		group.Go(func() error { return f.makeCluster(ctx, f.cluster(i)) })
		if i%1000 == 999 {
			f.progress.Say("%d clusters", i+1)
		}
	}
	return group.Wait()
}

// makeCluster makes a cluster that sleeps, and the slices without endpoints that Kubernetes makes for its Services.
func (f *fleet) makeCluster(ctx context.Context, name types.NamespacedName) error {
	services, err := scenario.CreateAsleep(ctx, f.admin, name)
	if err != nil {
		return err
	}
	for _, service := range services {
		if err := f.makeSlice(ctx, name.Name, service); err != nil {
			return fmt.Errorf("create a slice of Service %s: %w", service.Name, err)
		}
	}
	return nil
}

func (f *fleet) makeSlice(ctx context.Context, cluster string, service *corev1.Service) error {
	return f.admin.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, GenerateName: service.Name + "-",
			Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2026-03-01T00:00:00Z"},
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"cnpg.io/cluster": cluster, "cnpg.io/reconciled": "true",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}, client.FieldOwner("kube-controller-manager"))
}
