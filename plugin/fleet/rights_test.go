package fleet

import (
	"context"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

var resource = schema.GroupVersion{Group: "postgresql.cnpg.io", Version: "v1"}

func listing() *cnpgv1.Cluster {
	return &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "u"},
		Spec:       cnpgv1.ClusterSpec{Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}},
	}
}

// dozing is a cluster that lists the plugin and dozes.
func dozing() *cnpgv1.Cluster {
	cluster := listing()
	cluster.Annotations = map[string]string{contract.AnnotationDozeMinutes: "5"}
	cluster.Status.CurrentPrimary = "orders-1"
	return cluster
}

func name(object client.Object) []string { return []string{object.GetName()} }

// counted is a fake API server that counts writes.
func counted(t *testing.T, writes *int, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{cnpgv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&rbacv1.Role{}, "metadata.name", name).WithIndex(&rbacv1.RoleBinding{}, "metadata.name", name).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			*writes++
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			*writes++
			return c.Update(ctx, o, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			*writes++
			return c.Delete(ctx, o, options...)
		},
	}).Build()
}

// informed reads like the informers.
type informed struct{ client.Client }

func (i informed) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if err := i.Client.Get(ctx, key, into, options...); err != nil {
		return err
	}
	if _, cluster := into.(*cnpgv1.Cluster); !cluster && into.GetLabels()[contract.LabelManagedBy] != contract.ManagedBy {
		return apierrors.NewNotFound(rbacv1.Resource("objects"), key.Name)
	}
	return nil
}

func reconciles(t *testing.T, c client.Client) {
	t.Helper()
	if events, err := reconciled(t, c); err != nil || len(events) != 0 {
		t.Fatal(events, err)
	}
}

// reconciled is the outcome of one reconciliation, and the Events that it has written.
func reconciled(t *testing.T, c client.Client) (events []string, err error) {
	t.Helper()
	recorder := record.NewFakeRecorder(4)
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "orders"}}
	_, err = (&rights{Client: informed{c}, live: c, recorder: recorder, resource: resource}).Reconcile(t.Context(), request)
	close(recorder.Events)
	for event := range recorder.Events {
		events = append(events, event)
	}
	return events, err
}

// An object that is not ours and has the name of ours grants the sidecars nothing, which must not count as success.
func TestReconcile_saysThatAForeignObjectHasItsName(t *testing.T) {
	t.Parallel()
	named := metav1.ObjectMeta{Namespace: "shop", Name: "orders.scale-to-zero"}
	for kind, object := range map[string]client.Object{"Role": &rbacv1.Role{ObjectMeta: named}, "RoleBinding": &rbacv1.RoleBinding{ObjectMeta: named}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			writes := 0
			events, err := reconciled(t, counted(t, &writes, listing(), object))
			want := []string{"Warning RightsNotGranted The sidecars have no rights: " + kind +
				" orders.scale-to-zero exists without the label app.kubernetes.io/managed-by=cnpg-i-scale-to-zero; delete or rename it"}
			if diff := cmp.Diff(want, events); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if err == nil || !strings.Contains(err.Error(), "create "+kind+" orders.scale-to-zero") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// late are informers that have not seen yet what another replica has created.
type late struct{ client.Client }

func (l late) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if _, ok := into.(*cnpgv1.Cluster); !ok {
		return apierrors.NewNotFound(rbacv1.Resource("objects"), key.Name)
	}
	return l.Client.Get(ctx, key, into, options...)
}

func TestReconcile_acceptsWhatAnotherReplicaHasCreated(t *testing.T) {
	t.Parallel()
	writes := 0
	c := counted(t, &writes, listing())
	reconciles(t, c)
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "orders"}}
	recorder := record.NewFakeRecorder(1)
	if _, err := (&rights{Client: late{c}, live: c, recorder: recorder, resource: resource}).Reconcile(t.Context(), request); err != nil || len(recorder.Events) != 0 {
		t.Errorf("%v, %d Events", err, len(recorder.Events))
	}
}

// The other replica updates the same objects at the same moment.
func TestReconcile_leavesAConflictToTheNextChange(t *testing.T) {
	t.Parallel()
	var writes int
	cluster := listing()
	role, binding := Role(cluster, resource), RoleBinding(cluster, resource)
	role.Rules, binding.Subjects = nil, nil
	api := interceptor.NewClient(counted(t, &writes, cluster, role, binding).(client.WithWatch), interceptor.Funcs{
		Update: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
			return apierrors.NewConflict(rbacv1.Resource("objects"), o.GetName(), nil)
		},
	})
	r := &rights{Client: api, live: api, recorder: record.NewFakeRecorder(1), resource: resource}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}); err != nil {
		t.Errorf("a conflict is an error: %v", err)
	}
}

func TestReconcile_followsTheCluster(t *testing.T) {
	t.Parallel()
	writes := 0
	c := counted(t, &writes, listing())
	key := client.ObjectKey{Namespace: "shop", Name: "orders.scale-to-zero"}
	step := func(rule string, want int, change func(*cnpgv1.Cluster)) {
		t.Helper()
		var cluster cnpgv1.Cluster
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "orders"}, &cluster); err != nil {
			t.Fatal(err)
		}
		change(&cluster)
		if err := c.Update(t.Context(), &cluster); err != nil {
			t.Fatal(err)
		}
		writes = 0
		reconciles(t, c)
		if writes != want {
			t.Errorf("%s: %d writes, want %d", rule, writes, want)
		}
	}
	same := func(*cnpgv1.Cluster) {}
	step("a cluster that lists the plugin gets a Role and a RoleBinding", 2, same)
	step("nothing is written when nothing has changed", 0, same)
	var role rbacv1.Role
	if err := c.Get(t.Context(), key, &role); err != nil {
		t.Fatal(err)
	}
	role.Rules = role.Rules[:1]
	if err := c.Update(t.Context(), &role); err != nil {
		t.Fatal(err)
	}
	step("what somebody changed is mended", 1, same)
	step("another service account is bound", 1, func(c *cnpgv1.Cluster) { c.Spec.ServiceAccountName = "shared" })
	var binding rbacv1.RoleBinding
	if err := c.Get(t.Context(), key, &binding); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "shop", Name: "shared"}}, binding.Subjects); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
	step("a plugin that is turned off takes them away", 2, func(c *cnpgv1.Cluster) { c.Spec.Plugins[0].Enabled = ptr.To(false) })
	step("and nothing more is written", 0, same)
}

func TestReconcile_namesThePodOfAClusterThatDozes(t *testing.T) {
	t.Parallel()
	writes := 0
	c := counted(t, &writes, listing())
	none, one, other := []string(nil), []string{"orders-1", "orders-1"}, []string{"orders-2", "orders-2"}
	for _, row := range []struct {
		rule, doze, primary string
		want                []string
	}{
		{"a cluster that only hibernates", "", "orders-1", none},
		{"one that dozes before it has a pod", "5", "", none},
		{"its pod", "5", "orders-1", one},
		{"the pod that may be small without the annotation too", "", "orders-1", one},
		{"another pod was never small", "", "orders-2", none},
		{"again", "5", "orders-1", one},
		{"the new pod", "5", "orders-2", other},
		{"no pod any more", "5", "", none},
	} {
		var cluster cnpgv1.Cluster
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "orders"}, &cluster); err != nil {
			t.Fatal(err)
		}
		cluster.Annotations, cluster.Status.CurrentPrimary = nil, row.primary
		if row.doze != "" {
			cluster.Annotations = map[string]string{contract.AnnotationDozeMinutes: row.doze}
		}
		if err := c.Update(t.Context(), &cluster); err != nil {
			t.Fatal(err)
		}
		reconciles(t, c)
		var role rbacv1.Role
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "orders.scale-to-zero"}, &role); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, rule := range role.Rules[4:] {
			got = append(got, rule.ResourceNames...)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: pods (-want +got):\n%s", row.rule, diff)
		}
		writes = 0
		if reconciles(t, c); writes != 0 {
			t.Errorf("%s: written again", row.rule)
		}
	}
}

func TestRole(t *testing.T) {
	t.Parallel()
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{"postgresql.cnpg.io"}, Resources: []string{"clusters"}, ResourceNames: []string{"orders"}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{"postgresql.cnpg.io"}, Resources: []string{"scheduledbackups"}, Verbs: []string{"list", "patch"}},
		{APIGroups: []string{"postgresql.cnpg.io"}, Resources: []string{"backups"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
	}
	role := Role(listing(), resource)
	if diff := cmp.Diff(want, role.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	want = append(want,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"orders-1"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/resize"}, ResourceNames: []string{"orders-1"}, Verbs: []string{"patch"}})
	if diff := cmp.Diff(want, Role(dozing(), resource).Rules); diff != "" {
		t.Errorf("rules of a cluster that dozes (-want +got):\n%s", diff)
	}
	owner := []metav1.OwnerReference{{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: "orders", UID: "u", Controller: ptr.To(true)}}
	if diff := cmp.Diff(owner, role.OwnerReferences); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
}
