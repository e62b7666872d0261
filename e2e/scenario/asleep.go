package scenario

import (
	"context"
	"fmt"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ourFieldManager owns hibernation of a cluster that the sidecar put to sleep.
const ourFieldManager = "cnpg-i-scale-to-zero"

// CreateAsleep creates a cluster of one instance as it is when the operator has put it to sleep for the sidecar, and returns its
// Services. It never had a pod or a volume, so that thousands fit on a node; a running operator is told to leave it alone.
func CreateAsleep(ctx context.Context, c client.Client, name types.NamespacedName) ([]*corev1.Service, error) {
	cluster := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Annotations: map[string]string{
			Enabled: "true", "cnpg.io/reconciliationLoop": "disabled",
		}},
		Spec: cnpgv1.ClusterSpec{
			Instances: 1, ImageName: "example.org/postgresql:17.5", StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
			Plugins: []cnpgv1.PluginConfiguration{{Name: PluginName}},
		},
	}
	cluster.SetDefaults() // the operator's webhook does
	if err := c.Create(ctx, cluster, client.FieldOwner("kubectl-client-side-apply")); err != nil {
		return nil, fmt.Errorf("create Cluster %s: %w", name, err)
	}
	services := []*corev1.Service{
		specs.CreateClusterReadWriteService(*cluster), specs.CreateClusterReadService(*cluster), specs.CreateClusterReadOnlyService(*cluster),
	}
	for _, service := range services {
		service.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: cnpgv1.SchemeGroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: ptr.To(true),
		}}
		if err := c.Create(ctx, service, client.FieldOwner("manager")); err != nil {
			return nil, fmt.Errorf("create Service %s of Cluster %s: %w", service.Name, name, err)
		}
	}
	hibernate := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{`+
		`"`+Hibernation+`":"on","`+AsleepSince+`":"2026-03-01T00:00:00Z","`+AsleepReason+`":"inactivity"}}}`))
	if err := c.Patch(ctx, cluster, hibernate, client.FieldOwner(ourFieldManager)); err != nil {
		return nil, fmt.Errorf("turn hibernation of Cluster %s on: %w", name, err)
	}
	before, pod := cluster.DeepCopy(), name.Name+"-1"
	cluster.Status = cnpgv1.ClusterStatus{
		Instances: 1, CurrentPrimary: pod, TargetPrimary: pod, Phase: cnpgv1.PhaseHealthy, LatestGeneratedNode: 1,
		InstanceNames: []string{pod}, HealthyPVC: []string{pod}, PVCCount: 1, Image: cluster.Spec.ImageName,
		WriteService: name.Name + "-rw", ReadService: name.Name + "-r", TimelineID: 1, SystemID: "7434567890123456789",
		InstancesStatus: map[cnpgv1.PodStatus][]string{cnpgv1.PodHealthy: {pod}},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "ClusterIsReady", Message: "Cluster is Ready", LastTransitionTime: metav1.Now()},
			{Type: Hibernation, Status: metav1.ConditionTrue, Reason: "Hibernated", Message: "Cluster has been hibernated", LastTransitionTime: metav1.Now()},
		},
	}
	if err := c.Status().Patch(ctx, cluster, client.MergeFrom(before), client.FieldOwner("manager")); err != nil {
		return nil, fmt.Errorf("write the status of Cluster %s: %w", name, err)
	}
	return services, nil
}
