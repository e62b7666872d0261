package informers

import (
	"reflect"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var meta = metav1.ObjectMeta{
	Namespace: "shop", Name: "x", UID: "u", ResourceVersion: "7", OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", UID: "c"}},
	Labels:        map[string]string{"cnpg.io/cluster": "orders", "cnpg.io/instanceRole": "primary", "role": "primary", "team": "x", discoveryv1.LabelServiceName: "orders-rw"},
	Annotations:   map[string]string{"cnpg.io/podSpec": "very long", corev1.LastAppliedConfigAnnotation: "as long", "xata.io/scale-to-zero-enabled": "true"},
	ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
}

// named is the metadata that is kept of an irrelevant object.
var named = metav1.ObjectMeta{Namespace: "shop", Name: "x", UID: "u", ResourceVersion: "7"}

// instance is of a pod that is one.
var instance = func() metav1.ObjectMeta {
	instance := *meta.DeepCopy()
	instance.Labels["cnpg.io/podRole"] = "instance"
	instance.OwnerReferences = append(instance.OwnerReferences, metav1.OwnerReference{Kind: "Cluster", Name: "orders", UID: "c", Controller: ptr.To(true)})
	return instance
}()

// through passes an object through the transformation of its type.
func through[T client.Object](t *testing.T, object T) T {
	t.Helper()
	transform := Transform
	for kind, options := range ByObject("system") {
		if reflect.TypeOf(kind) == reflect.TypeOf(object) {
			transform = options.Transform
		}
	}
	kept, err := transform(object)
	if err != nil {
		t.Fatal(err)
	}
	return kept.(T)
}

func TestNothingIsKeptThatNoDecisionNeeds(t *testing.T) {
	t.Parallel()
	t.Run("of an instance the labels that Services may select by, its addresses, whether it is ready, its node and what it tolerates there, the image of its sidecar and what delays PostgreSQL", func(t *testing.T) {
		t.Parallel()
		always := ptr.To(corev1.ContainerRestartPolicyAlways)
		quick := corev1.Container{Name: "plugin-quick", RestartPolicy: always, StartupProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 100}}
		tolerations := []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, TolerationSeconds: ptr.To(int64(300))}}
		slow := corev1.Container{Name: "plugin-slow", Image: "slow:1", RestartPolicy: always, StartupProbe: &corev1.Probe{FailureThreshold: 10}}
		got := through(t, &corev1.Pod{
			ObjectMeta: *instance.DeepCopy(), Spec: corev1.PodSpec{NodeName: "n", Tolerations: tolerations, Containers: []corev1.Container{{Name: "postgres"}, {
				Name: "scale-to-zero", Image: "sidecar:1", Env: []corev1.EnvVar{{Name: "PGHOST"}},
			}}, InitContainers: []corev1.Container{{Name: "bootstrap-controller"}, quick, slow}},
			Status: corev1.PodStatus{
				PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}},
			},
		})
		want := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "x", UID: "u", ResourceVersion: "7",
				Labels: instance.Labels, OwnerReferences: instance.OwnerReferences,
			},
			Spec: corev1.PodSpec{NodeName: "n", Tolerations: tolerations, Containers: []corev1.Container{{Name: "scale-to-zero", Image: "sidecar:1"}}, InitContainers: []corev1.Container{{
				Name: "plugin-slow", RestartPolicy: slow.RestartPolicy, StartupProbe: &corev1.Probe{PeriodSeconds: 10},
			}}},
			Status: corev1.PodStatus{
				PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}},
			},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pod (-want +got):\n%s", diff)
		}
	})
	t.Run("of a node whether pods are to leave it", func(t *testing.T) {
		t.Parallel()
		taints := []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
		got := through(t, &corev1.Node{
			ObjectMeta: *meta.DeepCopy(), Spec: corev1.NodeSpec{Unschedulable: true, Taints: taints},
			Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"a:1"}}}},
		})
		want := &corev1.Node{ObjectMeta: *meta.DeepCopy(), Spec: corev1.NodeSpec{Unschedulable: true, Taints: taints}}
		want.ManagedFields, want.Annotations = nil, nil
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("node (-want +got):\n%s", diff)
		}
	})
	t.Run("of a Service all but its labels, other annotations than say how it is routed, who has set what, and its status", func(t *testing.T) {
		t.Parallel()
		want := &corev1.Service{ObjectMeta: *meta.DeepCopy(), Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: "postgres", Port: 5432, TargetPort: intstr.FromInt32(5432)}}, Selector: map[string]string{"a": "b"},
		}}
		have := want.DeepCopy()
		have.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		have.Annotations[contract.AnnotationUnroutable] = contract.UnroutableAccept
		want.ManagedFields, want.Labels = nil, nil
		want.Annotations = map[string]string{contract.AnnotationUnroutable: contract.UnroutableAccept}
		if diff := cmp.Diff(want, through(t, have)); diff != "" {
			t.Errorf("Service (-want +got):\n%s", diff)
		}
	})
	t.Run("of a Service that leads to no instances its name", func(t *testing.T) {
		t.Parallel()
		for rule, spec := range map[string]corev1.ServiceSpec{
			"one without a selector": {Ports: []corev1.ServicePort{{Port: 5432}}},
			"one of another port":    {Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt32(8443)}}},
		} {
			want := &corev1.Service{ObjectMeta: named}
			got := through(t, &corev1.Service{ObjectMeta: *meta.DeepCopy(), Spec: spec})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", rule, diff)
			}
		}
	})
	t.Run("of a slice without endpoints that may be instances its name", func(t *testing.T) {
		t.Parallel()
		for port, endpoints := range map[int32][]discoveryv1.Endpoint{8443: {{}}, 5432: nil} {
			got := through(t, &discoveryv1.EndpointSlice{
				ObjectMeta: *meta.DeepCopy(), Ports: []discoveryv1.EndpointPort{{Port: &port}}, Endpoints: endpoints,
			})
			if diff := cmp.Diff(&discoveryv1.EndpointSlice{ObjectMeta: named}, got); diff != "" {
				t.Errorf("slice of port %d (-want +got):\n%s", port, diff)
			}
		}
	})
	t.Run("of a Cluster no parameters of PostgreSQL, and not how it was applied", func(t *testing.T) {
		t.Parallel()
		have := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy()}
		have.SetDefaults()
		want := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy(), Spec: cnpgv1.ClusterSpec{Probes: have.Spec.Probes}}
		want.ManagedFields, want.Labels = nil, nil
		delete(want.Annotations, corev1.LastAppliedConfigAnnotation)
		if diff := cmp.Diff(want, through(t, have)); diff != "" {
			t.Errorf("Cluster (-want +got):\n%s", diff)
		}
	})
	t.Run("of an object that only a running instance applies whether it has, and when what it asks for has changed", func(t *testing.T) {
		t.Parallel()
		at, status := metav1.NewTime(time.Unix(1000, 0)), metav1.NewFieldsV1(`{"f:status":{}}`)
		have := &cnpgv1.Database{
			ObjectMeta: *meta.DeepCopy(),
			Spec:       cnpgv1.DatabaseSpec{ClusterRef: corev1.LocalObjectReference{Name: "orders"}, Name: "app", Owner: "app"},
			Status:     cnpgv1.DatabaseStatus{ObservedGeneration: 3, Applied: ptr.To(true), Message: "long"},
		}
		have.Generation, have.Finalizers = 4, []string{"cnpg.io/deleteDatabase"}
		have.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "kubectl", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:name":{}}}`)}, {Manager: "instance", FieldsV1: status},
		}
		want := &cnpgv1.Database{
			ObjectMeta: named, Spec: cnpgv1.DatabaseSpec{ClusterRef: have.Spec.ClusterRef}, Status: cnpgv1.DatabaseStatus{ObservedGeneration: 3},
		}
		want.Generation, want.Finalizers = have.Generation, have.Finalizers
		want.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &at, FieldsV1: specSet}}
		once := through(t, have)
		if diff := cmp.Diff(want, once); diff != "" {
			t.Errorf("Database (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, through(t, once)); diff != "" {
			t.Errorf("Database again (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(plan.PendingOf([]metav1.Object{have}), plan.PendingOf([]metav1.Object{once})); diff != "" {
			t.Errorf("what is pending (-want +got):\n%s", diff)
		}
		for _, other := range []metav1.Object{
			through(t, &cnpgv1.DatabaseRole{ObjectMeta: have.ObjectMeta}), through(t, &cnpgv1.Publication{ObjectMeta: have.ObjectMeta}),
			through(t, &cnpgv1.Subscription{ObjectMeta: have.ObjectMeta}),
		} {
			if len(other.GetLabels()) != 0 || len(other.GetManagedFields()) != 1 {
				t.Errorf("%T: %+v", other, other)
			}
		}
	})
	t.Run("of a Pooler how many instances it has, who has set that, which pods it has and whom it serves", func(t *testing.T) {
		t.Parallel()
		have := &cnpgv1.Pooler{ObjectMeta: *meta.DeepCopy(), Spec: cnpgv1.PoolerSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: "orders"}, Type: cnpgv1.PoolerTypeRO, Instances: ptr.To(int32(3)), ServiceAccountName: "x",
			Template: &cnpgv1.PodTemplateSpec{
				ObjectMeta: cnpgv1.Metadata{Labels: map[string]string{"team": "x"}, Annotations: map[string]string{"a": "b"}},
				Spec:       corev1.PodSpec{NodeName: "n"},
			},
			PgBouncer: &cnpgv1.PgBouncerSpec{PgHBA: []string{"x"}, Parameters: map[string]string{"a": "b"}},
		}, Status: cnpgv1.PoolerStatus{Instances: 3}}
		scaled := metav1.ManagedFieldsEntry{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:instances":{}}}`)}
		have.ManagedFields = append(have.ManagedFields, scaled)
		have.Annotations[contract.AnnotationInstances] = "3"
		want := &cnpgv1.Pooler{ObjectMeta: *named.DeepCopy(), Spec: cnpgv1.PoolerSpec{
			Cluster: cnpgv1.LocalObjectReference{Name: "orders"}, Type: cnpgv1.PoolerTypeRO, Instances: ptr.To(int32(3)),
			Template:  &cnpgv1.PodTemplateSpec{ObjectMeta: cnpgv1.Metadata{Labels: map[string]string{"team": "x"}}},
			PgBouncer: &cnpgv1.PgBouncerSpec{PgHBA: []string{"x"}},
		}}
		want.ManagedFields, want.Annotations = []metav1.ManagedFieldsEntry{scaled}, map[string]string{contract.AnnotationInstances: "3"}
		once := through(t, have)
		if diff := cmp.Diff(want, once); diff != "" {
			t.Errorf("Pooler (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, through(t, once)); diff != "" {
			t.Errorf("Pooler again (-want +got):\n%s", diff)
		}
	})
	t.Run("a slice of ours or of instances stays whole, to be compared", func(t *testing.T) {
		t.Parallel()
		for manager, port := range map[string]int32{endpointslice.ManagedBy: 7, "endpointslice-controller.k8s.io": 5432} {
			want := &discoveryv1.EndpointSlice{
				ObjectMeta: *meta.DeepCopy(), Ports: []discoveryv1.EndpointPort{{Port: ptr.To(port)}},
				Endpoints: []discoveryv1.Endpoint{{}},
			}
			want.Labels[discoveryv1.LabelManagedBy] = manager
			have := want.DeepCopy()
			want.ManagedFields = nil
			if diff := cmp.Diff(want, through(t, have)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", manager, diff)
			}
		}
	})
}

func TestWhoseTheSwitchIsStaysKnown(t *testing.T) {
	t.Parallel()
	for rule, manager := range map[string]string{"ours": contract.FieldManager, "a person's": "kubectl-annotate"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			have := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy()}
			have.ManagedFields = append(have.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{".":{},"f:cnpg.io/hibernation":{},"f:other":{}}}}`),
			})
			owned := plan.OwnsHibernation(have.ManagedFields)
			got := through(t, have)
			if plan.OwnsHibernation(got.ManagedFields) != owned || owned != (manager == contract.FieldManager) {
				t.Errorf("it is ours: %t, want %t", plan.OwnsHibernation(got.ManagedFields), owned)
			}
			if len(got.ManagedFields) != 1 {
				t.Errorf("who has set what: %v", got.ManagedFields)
			}
		})
	}
}

func TestTransform_keepsWhoseTheFenceIs(t *testing.T) {
	t.Parallel()
	const fence, both = `{"f:metadata":{"f:annotations":{"f:cnpg.io/fencedInstances":{}}}}`, `{"f:metadata":{"f:annotations":{"f:cnpg.io/fencedInstances":{},"f:cnpg.io/hibernation":{}}}}`
	for _, row := range []struct{ rule, manager, fields, value, hibernation, applied string }{
		{"ours", contract.FieldManager, fence, contract.FencedInstancesAll, "", `{}`},
		{"ours, and hibernation", contract.FieldManager, both, contract.FencedInstancesAll, "on", `{}`},
		{"a person's", "kubectl-cnpg", both, contract.FencedInstancesAll, "on", `{}`},
		{"ours, until a person applied it too", contract.FieldManager, fence, contract.FencedInstancesAll, "", `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`},
		{"of one instance", contract.FieldManager, fence, `["orders-1"]`, "", `{}`},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			have := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy()}
			have.Annotations = map[string]string{contract.AnnotationFencedInstances: row.value, contract.AnnotationHibernation: row.hibernation, corev1.LastAppliedConfigAnnotation: row.applied}
			have.ManagedFields = append(have.ManagedFields, metav1.ManagedFieldsEntry{Manager: row.manager, FieldsV1: metav1.NewFieldsV1(row.fields)})
			once := through(t, have)
			if diff := cmp.Diff(plan.View(have, time.Now()), plan.View(once, time.Now())); diff != "" {
				t.Errorf("what is seen of the Cluster (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(once, through(t, once)); diff != "" {
				t.Errorf("kept (-once +again):\n%s", diff)
			}
		})
	}
}

func TestTransform_keepsWhatPutsVolumesAtRisk(t *testing.T) {
	t.Parallel()
	for _, window := range []*cnpgv1.NodeMaintenanceWindow{
		nil, {}, {ReusePVC: new(bool)}, {InProgress: true}, {InProgress: true, ReusePVC: new(bool)}, {InProgress: true, ReusePVC: ptr.To(true)},
	} {
		have := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy(), Spec: cnpgv1.ClusterSpec{NodeMaintenanceWindow: window}}
		want := plan.View(have, time.Now()).VolumesAtRisk
		if got := plan.View(through(t, have), time.Now()).VolumesAtRisk; got != want {
			t.Errorf("%+v: volumes are at risk: %t, want %t", window, got, want)
		}
	}
}

func TestTransform_keepsWhatIsKnownOfBackups(t *testing.T) {
	t.Parallel()
	have := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy(), Spec: cnpgv1.ClusterSpec{
		Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}},
		Backup:  &cnpgv1.BackupConfiguration{RetentionPolicy: "30d", VolumeSnapshot: &cnpgv1.VolumeSnapshotConfiguration{}},
	}}
	have.Status.Conditions = []metav1.Condition{{Type: string(cnpgv1.ConditionBackup), Status: metav1.ConditionTrue}}
	policy := plan.View(have, time.Now()).Policy
	want, got := plan.BackupsOf(have, policy, nil), plan.BackupsOf(through(t, have), policy, nil)
	if !reflect.DeepEqual(want, got) || reflect.DeepEqual(got, plan.Backups{}) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestTransform_keepsWhetherStandbysMustStream(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[cnpgv1.ProbeStrategyType]bool{
		"": false, cnpgv1.ProbeStrategyPgIsReady: false, cnpgv1.ProbeStrategyQuery: false, cnpgv1.ProbeStrategyStreaming: true,
	} {
		probes := &cnpgv1.ProbesConfiguration{Readiness: &cnpgv1.ProbeWithStrategy{Type: strategy}}
		kept := through(t, &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy(), Spec: cnpgv1.ClusterSpec{Probes: probes}})
		if got := plan.OnlyStreaming(kept); got != want {
			t.Errorf("readiness %q: only streaming is %t, want %t", strategy, got, want)
		}
	}
}

func TestAMissedDeletionIsHandedOn(t *testing.T) {
	t.Parallel()
	marker := toolscache.DeletedFinalStateUnknown{Key: "shop/x"}
	for kind, options := range ByObject("system") {
		if options.Transform == nil {
			continue
		}
		if got, err := options.Transform(marker); err != nil || got != any(marker) {
			t.Errorf("%T: got %v, %v", kind, got, err)
		}
	}
}

// With WatchList, an informer transforms each object when it arrives, and again when the list is complete.
func TestWhatIsKeptIsKeptAgainAsItIs(t *testing.T) {
	t.Parallel()
	ours := &discoveryv1.EndpointSlice{ObjectMeta: *meta.DeepCopy(), AddressType: "IPv4", Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(7))}}}
	ours.Labels[discoveryv1.LabelManagedBy] = endpointslice.ManagedBy
	cluster := &cnpgv1.Cluster{ObjectMeta: *meta.DeepCopy()}
	cluster.ManagedFields = append(cluster.ManagedFields, metav1.ManagedFieldsEntry{
		Manager: contract.FieldManager, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cnpg.io/hibernation":{}}}}`),
	})
	for rule, have := range map[string]client.Object{
		"a Cluster that we put to sleep": cluster,
		"a Service":                      &corev1.Service{ObjectMeta: *meta.DeepCopy(), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}},
		"a pod": &corev1.Pod{ObjectMeta: *meta.DeepCopy(), Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "postgres"}, {Name: "scale-to-zero", Image: "sidecar:1"},
		}, InitContainers: []corev1.Container{{
			Name: "plugin", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), StartupProbe: &corev1.Probe{InitialDelaySeconds: 5},
		}}}},
		"a slice of ours": ours,
		"a Service's own slice": &discoveryv1.EndpointSlice{
			ObjectMeta: *meta.DeepCopy(), AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
		},
		"one without endpoints": &discoveryv1.EndpointSlice{ObjectMeta: *meta.DeepCopy(), AddressType: "IPv4"},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			for kind, options := range ByObject("system") {
				if reflect.TypeOf(kind) != reflect.TypeOf(have) {
					continue
				}
				once, err := options.Transform(have)
				if err != nil {
					t.Fatal(err)
				}
				before := once.(client.Object).DeepCopyObject()
				again, err := options.Transform(once)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, again); diff != "" {
					t.Errorf("kept (-once +again):\n%s", diff)
				}
			}
		})
	}
}
