package informers

import (
	"bytes"
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
)

// keys are those that an object is found by.
type keys struct {
	of    client.Object
	found map[string][]string
}

func (k keys) IndexField(_ context.Context, kind client.Object, field string, of client.IndexerFunc) error {
	if reflect.TypeOf(kind) != reflect.TypeOf(k.of) {
		return nil
	}
	if values := of(k.of); len(values) != 0 {
		k.found[field] = values
	}
	return nil
}

func TestIndex_findsNothingByWhatSaysNothing(t *testing.T) {
	t.Parallel()
	labelled := func(labels map[string]string) metav1.ObjectMeta { return metav1.ObjectMeta{Labels: labels} }
	service := func(port int32, selector map[string]string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: port}}}}
	}
	slice := func(labels map[string]string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		ports := []discoveryv1.EndpointPort{{Port: ptr.To(int32(10000))}}
		return &discoveryv1.EndpointSlice{ObjectMeta: labelled(labels), Ports: ports, Endpoints: endpoints}
	}
	own := map[string]string{discoveryv1.LabelServiceName: "orders-rw", endpointslice.LabelCluster: "orders"}
	ours := map[string]string{
		discoveryv1.LabelManagedBy: endpointslice.ManagedBy, endpointslice.LabelCluster: "orders", endpointslice.LabelReplica: "r",
	}
	ips := []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}
	for _, row := range []struct {
		rule string
		of   client.Object
		want map[string][]string
	}{
		{"a Service by the cluster that it selects", service(5432, own), map[string][]string{byCluster: {"orders"}}},
		{"one that names none by any", service(5432, map[string]string{"a": "b"}), map[string][]string{byCluster: {anyCluster}}},
		{"one of a Pooler by that", service(5432, map[string]string{"cnpg.io/poolerName": "pool"}), map[string][]string{byCluster: {"pooler/pool"}}},
		{"a Pooler by its cluster", &cnpgv1.Pooler{Spec: cnpgv1.PoolerSpec{Cluster: cnpgv1.LocalObjectReference{Name: "orders"}}},
			map[string][]string{byCluster: {"orders"}}},
		{"one that leads to no instances by none", service(443, own), map[string][]string{}},
		{"a Service's own slice by the Service", slice(own, discoveryv1.Endpoint{}), map[string][]string{byService: {"orders-rw"}}},
		{"one that is kept by its name alone by nothing", slice(nil), map[string][]string{}},
		{"a slice of ours by what it leads to", slice(ours), map[string][]string{byCluster: {"orders"}, byReplica: {"r"}, byPorts: {"156"}}},
		{"a pod by its cluster and addresses", &corev1.Pod{ObjectMeta: labelled(own), Status: corev1.PodStatus{PodIPs: ips}},
			map[string][]string{byCluster: {"orders"}, byAddress: {"10.0.0.1", "fd00::1"}}},
		{"a Database by the cluster that it names", &cnpgv1.Database{Spec: cnpgv1.DatabaseSpec{ClusterRef: corev1.LocalObjectReference{Name: "orders"}}},
			map[string][]string{byCluster: {"orders"}}},
		{"a Subscription of none by nothing", &cnpgv1.Subscription{}, map[string][]string{}},
		{"not by those that another may have by now", &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, PodIPs: ips}}, map[string][]string{}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got := keys{row.of, map[string][]string{}}
			if err := Index(t.Context(), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, got.found); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReader_takesASliceForOursByEitherLabel(t *testing.T) {
	t.Parallel()
	slice := func(name, key, value string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{key: value}}}
	}
	api := fake.NewFakeClient(
		slice("managed", discoveryv1.LabelManagedBy, endpointslice.ManagedBy), slice("replica", endpointslice.LabelReplica, "r"),
		slice("other", discoveryv1.LabelManagedBy, "endpointslice-controller.k8s.io"),
	)
	found, err := NewReader(api).OurSlices(t.Context())
	var names []string
	for i := range found {
		names = append(names, found[i].Name)
	}
	if diff := cmp.Diff([]string{"managed", "replica"}, names); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestReader_findsTheObjectsOfACluster(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := cnpgv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	orders, other := corev1.LocalObjectReference{Name: "orders"}, corev1.LocalObjectReference{Name: "other"}
	objects := []client.Object{
		&cnpgv1.Database{ObjectMeta: meta("shop", "a"), Spec: cnpgv1.DatabaseSpec{ClusterRef: orders}},
		&cnpgv1.DatabaseRole{ObjectMeta: meta("shop", "b"), Spec: cnpgv1.DatabaseRoleSpec{ClusterRef: orders}},
		&cnpgv1.Publication{ObjectMeta: meta("shop", "c"), Spec: cnpgv1.PublicationSpec{ClusterRef: orders}},
		&cnpgv1.Subscription{ObjectMeta: meta("shop", "d"), Spec: cnpgv1.SubscriptionSpec{ClusterRef: orders}},
		&cnpgv1.Database{ObjectMeta: meta("shop", "e"), Spec: cnpgv1.DatabaseSpec{ClusterRef: other}},
		&cnpgv1.Database{ObjectMeta: meta("another", "f"), Spec: cnpgv1.DatabaseSpec{ClusterRef: orders}},
		&cnpgv1.ScheduledBackup{ObjectMeta: meta("shop", "g"), Spec: cnpgv1.ScheduledBackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: "orders"}}},
		&cnpgv1.ScheduledBackup{ObjectMeta: meta("shop", "h"), Spec: cnpgv1.ScheduledBackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: "other"}}},
		&cnpgv1.Pooler{ObjectMeta: meta("shop", "i"), Spec: cnpgv1.PoolerSpec{Cluster: cnpgv1.LocalObjectReference{Name: "orders"}}},
		&cnpgv1.Pooler{ObjectMeta: meta("shop", "j"), Spec: cnpgv1.PoolerSpec{Cluster: cnpgv1.LocalObjectReference{Name: "other"}}},
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
	for _, kind := range kinds {
		builder.WithIndex(kind.object, byCluster, one(reference))
	}
	builder.WithIndex(&cnpgv1.ScheduledBackup{}, byCluster, one(reference))
	reader, cluster := NewReader(builder.Build()), types.NamespacedName{Namespace: "shop", Name: "orders"}
	found, err := reader.Objects(t.Context(), cluster)
	var names string
	for _, o := range found {
		names += o.GetName()
	}
	if err != nil || names != "abcd" {
		t.Errorf("%q, %v", names, err)
	}
	schedules, err := reader.Schedules(t.Context(), cluster)
	if err != nil || len(schedules) != 1 || schedules[0].Name != "g" {
		t.Errorf("%v, %v", schedules, err)
	}
	poolers, err := reader.Poolers(t.Context(), cluster)
	if err != nil || len(poolers) != 1 || poolers[0].Name != "i" {
		t.Errorf("%v, %v", poolers, err)
	}
	selector := map[string]string{"cnpg.io/poolerName": "i"}
	of := &corev1.Service{ObjectMeta: meta("shop", "pool"), Spec: corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 5432}}}}
	for _, o := range append(slices.Clone(objects[:4]), objects[6], objects[8], of) {
		if concerned, err := reader.Concerned(t.Context(), o); err != nil || len(concerned) != 1 || concerned[0] != cluster {
			t.Errorf("%T concerns %v, %v", o, concerned, err)
		}
	}
}

func TestWatch_passesOverKindsThatTheOperatorDoesNotHave(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := cnpgv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{cnpgv1.SchemeGroupVersion})
	for _, kind := range []string{"Database", "Publication", "Subscription", "Pooler"} {
		mapper.Add(cnpgv1.SchemeGroupVersion.WithKind(kind), apimeta.RESTScopeNamespace)
	}
	var logged bytes.Buffer
	known, err := knownTo(fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).Build(), slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil || len(known) != 4 || len(Reader{nil, known}.Kinds()) != 4 {
		t.Errorf("%d kinds, %v", len(known), err)
	}
	if text := logged.String(); strings.Count(text, "kind=") != 1 || !strings.Contains(text, "kind=DatabaseRole") {
		t.Error(text)
	}
}
