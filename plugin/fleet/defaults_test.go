package fleet

import (
	"context"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	enabled, minutes = contract.AnnotationEnabled, contract.AnnotationInactivityMinutes
	copied           = `{"xata.io/scale-to-zero-enabled":"true"}`
)

// api is an API server with a Namespace and one Cluster in it.
func api(t *testing.T, namespace, cluster map[string]string, listed bool) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	orders := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Annotations: cluster}}
	if listed {
		orders.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
	}
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "shop-uid", Annotations: namespace, Labels: map[string]string{"team": "a"}}}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(orders, shop).Build()
}

func TestClusters_haveTheAnnotationsOfTheirNamespace(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule               string
		namespace, cluster map[string]string
		listed             bool
		want               map[string]string
	}{
		{"the Namespace's are copied", map[string]string{enabled: "true", "team": "a"}, nil, true, map[string]string{contract.AnnotationDefaults: copied}},
		{
			"a Cluster's own stay", map[string]string{enabled: "true"}, map[string]string{minutes: "5"}, true,
			map[string]string{minutes: "5", contract.AnnotationDefaults: copied},
		},
		{
			"changed ones are copied again", map[string]string{enabled: "true"}, map[string]string{contract.AnnotationDefaults: "{}"}, true,
			map[string]string{contract.AnnotationDefaults: copied},
		},
		{"removed ones are removed", nil, map[string]string{minutes: "5", contract.AnnotationDefaults: copied}, true, map[string]string{minutes: "5"}},
		{
			"where one is invalid the Cluster keeps what it has", map[string]string{enabled: "true", minutes: "soon"},
			map[string]string{contract.AnnotationDefaults: copied}, true, map[string]string{contract.AnnotationDefaults: copied},
		},
		{"a Cluster that does not list the plugin has none", map[string]string{enabled: "true"}, map[string]string{minutes: "5", contract.AnnotationDefaults: copied}, false, map[string]string{minutes: "5"}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			c := api(t, row.namespace, row.cluster, row.listed)
			var after cnpgv1.Cluster
			orders := client.ObjectKey{Namespace: "shop", Name: "orders"}
			for range 2 {
				if _, err := (&clusters{c, c}).Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Get(t.Context(), orders, &after); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.want, after.Annotations); diff != "" {
				t.Errorf("annotations of the Cluster (-want +got):\n%s", diff)
			}
		})
	}
}

// informers return what they keep, and not copies of it.
type informers struct {
	client.Client
	cluster   *cnpgv1.Cluster
	namespace *corev1.Namespace
}

func (i informers) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *cnpgv1.Cluster:
		*into = *i.cluster
	case *corev1.Namespace:
		*into = *i.namespace
	}
	return nil
}

func TestClusters_leaveWhatTheInformersKeep(t *testing.T) {
	t.Parallel()
	c := api(t, map[string]string{enabled: "true"}, map[string]string{minutes: "5"}, true)
	kept := informers{Client: c, cluster: &cnpgv1.Cluster{}, namespace: &corev1.Namespace{}}
	orders := client.ObjectKey{Namespace: "shop", Name: "orders"}
	for key, object := range map[client.ObjectKey]client.Object{orders: kept.cluster, {Name: "shop"}: kept.namespace} {
		if err := c.Get(t.Context(), key, object); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (&clusters{kept, c}).Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{minutes: "5"}, kept.cluster.Annotations); diff != "" {
		t.Errorf("annotations of the shared Cluster (-want +got):\n%s", diff)
	}
}

// A replica whose informers are late does not undo what another has written.
func TestClusters_followTheNamespaceAsItIs(t *testing.T) {
	t.Parallel()
	c := api(t, map[string]string{enabled: "true"}, map[string]string{contract.AnnotationDefaults: copied}, true)
	late := informers{Client: c, cluster: &cnpgv1.Cluster{}, namespace: &corev1.Namespace{}}
	orders := client.ObjectKey{Namespace: "shop", Name: "orders"}
	if err := c.Get(t.Context(), orders, late.cluster); err != nil {
		t.Fatal(err)
	}
	if _, err := (&clusters{late, c}).Reconcile(t.Context(), ctrl.Request{NamespacedName: orders}); err != nil {
		t.Fatal(err)
	}
	var after cnpgv1.Cluster
	if err := c.Get(t.Context(), orders, &after); err != nil {
		t.Fatal(err)
	}
	if after.Annotations[contract.AnnotationDefaults] != copied {
		t.Errorf("the defaults are %q", after.Annotations[contract.AnnotationDefaults])
	}
}

func TestClusters_areReconciledWhenTheirNamespaceChanges(t *testing.T) {
	t.Parallel()
	c := &clusters{Client: api(t, nil, nil, true)}
	got := c.in(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	want := []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "orders"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if other := c.in(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}); len(other) != 0 {
		t.Errorf("requests for another Namespace: %v", other)
	}
}

func TestNamespaces_areToldWhatIsInvalid(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, value string
		want        []string
	}{
		{"nothing is said of valid ones", "5", nil},
		{
			"an invalid one is named", "soon",
			[]string{`Warning InvalidDefaults The Clusters of this Namespace keep their current defaults, because an annotation is invalid: annotation xata.io/scale-to-zero-inactivity-minutes has the value "soon": it must be a positive number of minutes, at most 525600, such as "30" or "0.5"`},
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			recorder := record.NewFakeRecorder(1)
			n := &namespaces{api(t, map[string]string{minutes: row.value}, nil, true), recorder}
			if _, err := n.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "shop"}}); err != nil {
				t.Fatal(err)
			}
			close(recorder.Events)
			var got []string
			for event := range recorder.Events {
				got = append(got, event)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeep_keepsOurAnnotations(t *testing.T) {
	t.Parallel()
	whole := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"team": "a"}, Annotations: map[string]string{enabled: "true", "owner": "a"},
	}}
	kept, err := keep(whole)
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "uid", ResourceVersion: "7", Annotations: map[string]string{enabled: "true"}}}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}
