package main

import (
	"context"
	"fmt"
	"syscall"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/cluster"
)

const (
	hibernation  = "cnpg.io/hibernation"
	fieldManager = "cnpg-i-scale-to-zero"
	// writers is how many objects are made at once.
	writers = 16
)

// fleet is the clusters, and the plugin that they are measured with.
type fleet struct {
	options
	*server
	progress *cluster.Progress
	// few is the limit of file descriptors of the next plugin; nil: this process's own.
	few *syscall.Rlimit
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
		group.Go(func() error {
			if err := f.makeCluster(ctx, f.cluster(i)); err != nil {
				return fmt.Errorf("make Cluster %s: %w", f.cluster(i), err)
			}
			return nil
		})
		if i%1000 == 999 {
			f.progress.Say("%d clusters", i+1)
		}
	}
	return group.Wait()
}

// makeCluster makes a cluster as it is when the operator has put it to sleep for the sidecar.
func (f *fleet) makeCluster(ctx context.Context, name types.NamespacedName) error {
	c := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: name.Name, Annotations: map[string]string{"xata.io/scale-to-zero-enabled": "true"},
		},
		Spec: cnpgv1.ClusterSpec{
			Instances: 1, ImageName: "example.org/postgresql:17.5", StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
			Plugins: []cnpgv1.PluginConfiguration{{Name: "cnpg-i-scale-to-zero.xata.io"}},
		},
	}
	c.SetDefaults() // the operator's webhook does
	if err := f.admin.Create(ctx, c, client.FieldOwner("kubectl-client-side-apply")); err != nil {
		return err
	}
	for _, service := range []*corev1.Service{
		specs.CreateClusterReadWriteService(*c), specs.CreateClusterReadService(*c), specs.CreateClusterReadOnlyService(*c),
	} {
		if err := f.makeService(ctx, c, service); err != nil {
			return err
		}
	}
	patch := client.RawPatch(types.MergePatchType, []byte(
		`{"metadata":{"annotations":{"`+hibernation+`":"on","xata.io/scale-to-zero-asleep-since":"2026-03-01T00:00:00Z","xata.io/scale-to-zero-asleep-reason":"inactivity"}}}`))
	if err := f.admin.Patch(ctx, c, patch, client.FieldOwner(fieldManager)); err != nil {
		return err
	}
	pod := name.Name + "-1"
	c.Status = cnpgv1.ClusterStatus{
		Instances: 1, CurrentPrimary: pod, TargetPrimary: pod, Phase: cnpgv1.PhaseHealthy, LatestGeneratedNode: 1,
		InstanceNames: []string{pod}, HealthyPVC: []string{pod}, PVCCount: 1, Image: c.Spec.ImageName,
		WriteService: name.Name + "-rw", ReadService: name.Name + "-r", TimelineID: 1, SystemID: "7434567890123456789",
		InstancesStatus: map[cnpgv1.PodStatus][]string{cnpgv1.PodHealthy: {pod}},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "ClusterIsReady", Message: "Cluster is Ready", LastTransitionTime: metav1.Now()},
			{Type: hibernation, Status: metav1.ConditionTrue, Reason: "Hibernated", Message: "Cluster has been hibernated", LastTransitionTime: metav1.Now()},
		},
	}
	return f.admin.Status().Update(ctx, c, client.FieldOwner("manager"))
}

// makeService makes a Service and the slice without endpoints that Kubernetes makes for it.
func (f *fleet) makeService(ctx context.Context, c *cnpgv1.Cluster, service *corev1.Service) error {
	service.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: c.Name, UID: c.UID, Controller: ptr.To(true),
	}}
	if err := f.admin.Create(ctx, service, client.FieldOwner("manager")); err != nil {
		return err
	}
	return f.admin.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, GenerateName: service.Name + "-",
			Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2026-03-01T00:00:00Z"},
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"cnpg.io/cluster": c.Name, "cnpg.io/reconciled": "true",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}, client.FieldOwner("kube-controller-manager"))
}
