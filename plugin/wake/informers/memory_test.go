package informers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/fleet"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// fleetOf is how many clusters the memory is measured with, of which one in thirty are in a namespace.
const fleetOf = 3000

// message is what the API server sends: an object takes memory of its own for each of its texts.
type message struct {
	body []byte
	read func([]byte) (client.Object, error)
}

// protobuf is implemented by Kubernetes' own types.
type protobuf[T any] interface {
	*T
	client.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

func sent[T any, P protobuf[T]](b *testing.B, object P) message {
	b.Helper()
	body, err := object.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	return message{body, func(body []byte) (client.Object, error) {
		into := P(new(T))
		return into, into.Unmarshal(body)
	}}
}

func identified(o metav1.ObjectMeta, i int) metav1.ObjectMeta {
	o.UID, o.ResourceVersion = types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", i, i)), fmt.Sprint(1000000+i)
	o.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "manager", Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:cnpg.io/cluster":{}},"f:ownerReferences":{}},"f:spec":{"f:selector":{},"f:ports":{}}}`),
	}}
	return o
}

// asleep are a sleeping cluster and what the API server has for it.
func asleep(b *testing.B, i int) map[string][]message {
	b.Helper()
	pod := fmt.Sprintf("orders-%d-1", i)
	cluster := &cnpgv1.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster"},
		ObjectMeta: identified(metav1.ObjectMeta{Namespace: fmt.Sprintf("tenant-%d", i%(fleetOf/30)), Name: fmt.Sprintf("orders-%d", i), Annotations: map[string]string{
			contract.AnnotationEnabled: "true", contract.AnnotationHibernation: "on",
			contract.AnnotationAsleepSince: fmt.Sprintf("2026-03-01T00:00:%02dZ", i%60), contract.AnnotationAsleepReason: "inactivity",
		}}, i),
		Spec: cnpgv1.ClusterSpec{
			Instances: 1, ImageName: "example.org/postgresql:17.5", StorageConfiguration: cnpgv1.StorageConfiguration{Size: "1Gi"},
			Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}},
		},
		Status: cnpgv1.ClusterStatus{
			CurrentPrimary: pod, TargetPrimary: pod, Phase: cnpgv1.PhaseHealthy, InstanceNames: []string{pod}, HealthyPVC: []string{pod},
			Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "ClusterIsReady"}, {Type: contract.AnnotationHibernation, Status: "True", Reason: "Hibernated"}},
		},
	}
	cluster.SetDefaults()
	cluster.ManagedFields = append(cluster.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: contract.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cnpg.io/hibernation":{}}}}`),
	})
	body, err := json.Marshal(cluster)
	if err != nil {
		b.Fatal(err)
	}
	resource := cnpgv1.SchemeGroupVersion
	role, binding := fleet.Role(cluster, resource), fleet.RoleBinding(cluster, resource)
	role.ObjectMeta, binding.ObjectMeta = identified(role.ObjectMeta, i), identified(binding.ObjectMeta, i)
	messages := map[string][]message{"Roles": {sent(b, role)}, "RoleBindings": {sent(b, binding)}, "Clusters": {{body, func(body []byte) (client.Object, error) {
		var into cnpgv1.Cluster
		return &into, json.Unmarshal(body, &into)
	}}}}
	replica := endpointslice.Replica{Namespace: "cnpg-system", Pod: "scale-to-zero-1", UID: "11111111-0000-4000-8000-000000000000", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}
	for n, service := range []*corev1.Service{
		specs.CreateClusterReadWriteService(*cluster), specs.CreateClusterReadService(*cluster), specs.CreateClusterReadOnlyService(*cluster),
	} {
		service.ObjectMeta = identified(service.ObjectMeta, 10*i+n)
		service.OwnerReferences = []metav1.OwnerReference{{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: ptr.To(true)}}
		service.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", (3*i+n)/250, (3*i+n)%250)
		service.Spec.ClusterIPs, service.Spec.IPFamilies = []string{service.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
		messages["Services"] = append(messages["Services"], sent(b, service))
		messages["slices without endpoints"] = append(messages["slices without endpoints"], sent(b, &discoveryv1.EndpointSlice{
			ObjectMeta: identified(metav1.ObjectMeta{
				Namespace: service.Namespace, Name: service.Name + "-x7f2k",
				Labels: map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", endpointslice.LabelCluster: cluster.Name},
			}, 10*i+n), AddressType: discoveryv1.AddressTypeIPv4,
		}))
		if n > 1 {
			continue // the gateway leads -rw and -r
		}
		for _, slice := range endpointslice.Wanted(service, cluster.Name, replica, uint16(10000+2*i+n)) {
			slice.ObjectMeta = identified(slice.ObjectMeta, 10*i+n+5)
			messages["slices of ours"] = append(messages["slices of ours"], sent(b, &slice))
		}
	}
	labels := map[string]string{
		endpointslice.LabelCluster: cluster.Name, endpointslice.LabelPodRole: "instance", endpointslice.LabelInstanceRole: "primary", "role": "primary", "cnpg.io/instanceName": pod,
	}
	messages["pods of awake clusters"] = []message{sent(b, &corev1.Pod{
		ObjectMeta: identified(metav1.ObjectMeta{Namespace: cluster.Namespace, Name: pod, Labels: labels, OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", Name: cluster.Name, UID: cluster.UID, Controller: ptr.To(true)}}}, i),
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "postgres", Image: "example.org/postgresql:17.5", Env: []corev1.EnvVar{{Name: "PGDATA", Value: "/var/lib/postgresql/data/pgdata"}, {Name: "CLUSTER_NAME", Value: cluster.Name}}},
			{Name: "scale-to-zero", Image: "example.org/sidecar:1"},
		}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.2.%d.%d", i/250, i%250), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.2.%d.%d", i/250, i%250)}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}},
		},
	})}
	return messages
}

func transformOf(object client.Object) toolscache.TransformFunc {
	watched := ByObject("system")
	maps.Copy(watched, fleet.ByObject())
	for kind, options := range watched {
		if fmt.Sprintf("%T", kind) == fmt.Sprintf("%T", object) {
			return options.Transform
		}
	}
	return nil
}

// fields are the indices of each type, as the library keeps them: by two keys, one with the namespace.
type fields map[string]toolscache.Indexers

func (f fields) IndexField(_ context.Context, kind client.Object, field string, of client.IndexerFunc) error {
	f.of(kind)[field] = func(o any) ([]string, error) {
		var keys []string
		for _, value := range of(o.(client.Object)) {
			keys = append(keys, "__all_namespaces/"+value, o.(client.Object).GetNamespace()+"/"+value)
		}
		return keys, nil
	}
	return nil
}

func (f fields) of(kind client.Object) toolscache.Indexers {
	name := fmt.Sprintf("%T", kind)
	if f[name] == nil {
		f[name] = toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
	}
	return f[name]
}

// BenchmarkMemory reports what an informer keeps of each kind for each cluster of a fleet: of the objects as the API server sends
// them, and of what is kept, with its indices.
func BenchmarkMemory(b *testing.B) {
	all := map[string][]message{}
	for i := range fleetOf {
		for kind, messages := range asleep(b, i) {
			all[kind] = append(all[kind], messages...)
		}
	}
	indices := fields{}
	if err := Index(b.Context(), indices); err != nil {
		b.Fatal(err)
	}
	for kind, messages := range all {
		for _, kept := range []string{"whole", "kept"} {
			b.Run(kind+"/"+kept, func(b *testing.B) {
				for range b.N {
					before := heap()
					first, err := messages[0].read(messages[0].body)
					if err != nil {
						b.Fatal(err)
					}
					store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indices.of(first))
					for _, m := range messages {
						var object any
						object, err := m.read(m.body)
						if err == nil && kept == "kept" {
							object, err = transformOf(object.(client.Object))(object)
						}
						if err == nil {
							err = store.Add(object)
						}
						if err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(heap()-before)/fleetOf, "B/cluster")
					runtime.KeepAlive(store)
				}
			})
		}
	}
}

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
