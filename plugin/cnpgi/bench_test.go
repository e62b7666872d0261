package cnpgi

import (
	"encoding/json"
	"log/slog"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// managedCluster is a Cluster as the operator sends it, with status and managedFields.
func managedCluster(t testing.TB) []byte {
	t.Helper()
	cluster := clusterOf(corev1.ResourceRequirements{})
	cluster.Annotations = map[string]string{contract.AnnotationEnabled: "true"}
	cluster.Status = cnpgv1.ClusterStatus{
		Instances: 3, ReadyInstances: 3, CurrentPrimary: "orders-1", TargetPrimary: "orders-1", Phase: cnpgv1.PhaseHealthy,
		InstanceNames: []string{"orders-1", "orders-2", "orders-3"}, HealthyPVC: []string{"orders-1", "orders-2", "orders-3"},
	}
	fields, err := json.Marshal(map[string]any{"f:spec": cluster.Spec, "f:status": cluster.Status})
	if err != nil {
		t.Fatal(err)
	}
	for _, manager := range []string{"kubectl", "manager", "instance", contract.FieldManager} {
		cluster.ManagedFields = append(cluster.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: fields},
		})
	}
	definition, err := json.Marshal(cluster)
	if err != nil {
		t.Fatal(err)
	}
	return definition
}

func BenchmarkLifecycleHook(b *testing.B) {
	body, err := json.Marshal(instance(b))
	if err != nil {
		b.Fatal(err)
	}
	cluster := managedCluster(b)
	server := &Lifecycle{Sidecar: configured(), SidecarProbes: true, LimitRanges: unlimited, Observer: &observed{}, Logger: slog.New(slog.DiscardHandler)}
	for name, operation := range map[string]lifecycle.OperatorOperationType_Type{
		"create": create, "evaluate": evaluate,
	} {
		request := &lifecycle.OperatorLifecycleRequest{
			ObjectDefinition: body, ClusterDefinition: cluster, OperationType: &lifecycle.OperatorOperationType{Type: operation},
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body) + len(cluster)))
			for b.Loop() {
				if answer, err := server.LifecycleHook(b.Context(), request); err != nil || len(answer.GetJsonPatch()) == 0 {
					b.Fatal(answer, err)
				}
			}
		})
	}
}
