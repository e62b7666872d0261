package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// reading is a client of an API server with these objects.
func reading(t *testing.T, objects ...client.Object) *fake.ClientBuilder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithObjects(objects...)
}

func metadata(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

func cluster(name string, plugins ...cnpgv1.PluginConfiguration) *cnpgv1.Cluster {
	return &cnpgv1.Cluster{ObjectMeta: metadata(name), Spec: cnpgv1.ClusterSpec{Plugins: plugins}}
}

// fenced is a cluster without the plugin that this field manager has fenced.
func fenced(name, manager string) *cnpgv1.Cluster {
	c := cluster(name)
	c.Annotations = map[string]string{contract.AnnotationFencedInstances: contract.FencedInstancesAll}
	c.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: resource.String(), FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cnpg.io/fencedInstances":{}}}}`),
	}}
	return c
}

var resource = schema.GroupVersion{Group: contract.DefaultCNPGGroup, Version: contract.DefaultCNPGVersion}

func TestCheckUninstall_refusesWhileAClusterListsThePlugin(t *testing.T) {
	t.Parallel()
	ours := cnpgv1.PluginConfiguration{Name: contract.PluginName}
	many := make([]client.Object, 12)
	for i := range many {
		many[i] = cluster(fmt.Sprintf("c%02d", i), ours)
	}
	for _, row := range []struct {
		rule    string
		objects []client.Object
		want    string
	}{
		{"nobody uses it", nil, ""},
		{"another plugin is not this one", []client.Object{cluster("orders", cnpgv1.PluginConfiguration{Name: "barman-cloud.cloudnative-pg.io"})}, ""},
		{"one that is turned off is not called", []client.Object{cluster("orders", cnpgv1.PluginConfiguration{Name: contract.PluginName, Enabled: ptr.To(false)})}, ""},
		{"a cluster is named", []client.Object{cluster("orders", ours), cluster("invoices")}, "1 Clusters list the plugin, and without it the operator does not reconcile them, failover included: shop/orders; remove"},
		{"of many some are named", many, "shop/c09, and 2 more; remove"},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			err := awaitRemovable(t.Context(), reading(t, row.objects...).Build(), resource, 0)
			var used *inUseError
			if errors.As(err, &used) != (row.want != "") || row.want != "" && !strings.Contains(err.Error(), row.want) {
				t.Errorf("it says %v, want %q", err, row.want)
			}
		})
	}
}

// Without the operator's CRDs no Cluster lists the plugin.
func TestCheckUninstall_withoutTheOperatorsResources(t *testing.T) {
	t.Parallel()
	reader := reading(t).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if list.GetObjectKind().GroupVersionKind().Group == contract.DefaultCNPGGroup {
				return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: contract.DefaultCNPGGroup, Kind: "Cluster"}}
			}
			return c.List(ctx, list, options...)
		},
	}).Build()
	if err := awaitRemovable(t.Context(), reader, resource, 0); err != nil {
		t.Error(err)
	}
}

// The plugin's objects are awaited, and named if they remain.
func TestCheckUninstall_awaitsWhatThePluginRemoves(t *testing.T) {
	t.Parallel()
	mark := func(object client.Object, key, value string) client.Object {
		object.SetLabels(map[string]string{key: value})
		return object
	}
	pooler := func(cluster, annotation string) client.Object {
		object := &cnpgv1.Pooler{ObjectMeta: metadata("orders-pool"), Spec: cnpgv1.PoolerSpec{Cluster: cnpgv1.LocalObjectReference{Name: cluster}}}
		object.Annotations = map[string]string{annotation: "2"}
		return object
	}
	schedule := func(cluster string) client.Object {
		object := &cnpgv1.ScheduledBackup{ObjectMeta: metadata("orders-daily"), Spec: cnpgv1.ScheduledBackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: cluster}}}
		object.Annotations = map[string]string{contract.AnnotationSuspended: "true"}
		return object
	}
	for _, row := range []struct {
		rule   string
		object client.Object
		want   string
	}{
		{"a slice of the gateway", mark(&discoveryv1.EndpointSlice{ObjectMeta: metadata("orders-rw-x")}, discoveryv1.LabelManagedBy, endpointslice.ManagedBy), "EndpointSlice shop/orders-rw-x"},
		{"a binding", mark(&rbacv1.RoleBinding{ObjectMeta: metadata("orders-scale-to-zero")}, contract.LabelManagedBy, contract.ManagedBy), "RoleBinding shop/orders-scale-to-zero"},
		{"a role", mark(&rbacv1.Role{ObjectMeta: metadata("orders-scale-to-zero")}, contract.LabelManagedBy, contract.ManagedBy), "Role shop/orders-scale-to-zero"},
		{"a Pooler that is scaled to zero", pooler("bystander", contract.AnnotationInstances), "annotation xata.io/scale-to-zero-instances of Pooler shop/orders-pool"},
		{"one that the plugin has not scaled", pooler("bystander", "example.org/note"), ""},
		{"one of a Cluster that was deleted", pooler("gone", contract.AnnotationInstances), ""},
		{"a ScheduledBackup that is suspended", schedule("bystander"), "annotation xata.io/scale-to-zero-suspended of ScheduledBackup shop/orders-daily"},
		{"one of a deleted Cluster, whose mark the plugin leaves", schedule("gone"), ""},
		{"a cluster that dozes", fenced("orders", contract.FieldManager), "the fence of Cluster shop/orders"},
		{"one that a person fenced", fenced("orders", "kubectl-cnpg"), ""},
		{"somebody else's slice", mark(&discoveryv1.EndpointSlice{ObjectMeta: metadata("orders-rw-y")}, discoveryv1.LabelManagedBy, "endpointslice-controller.k8s.io"), ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stays := awaitRemovable(t.Context(), reading(t, row.object, cluster("bystander")).Build(), resource, time.Minute)
				if (stays != nil) != (row.want != "") || row.want != "" && !strings.Contains(stays.Error(), row.want+" is still there after 1m0s") {
					t.Errorf("it says %v, want %q", stays, row.want)
				}
				store := reading(t, row.object.DeepCopyObject().(client.Object), cluster("bystander")).Build()
				go func() {
					time.Sleep(20 * time.Second)
					if err := store.Delete(t.Context(), row.object); err != nil {
						t.Error(err)
					}
				}()
				if err := awaitRemovable(t.Context(), store, resource, time.Minute); err != nil {
					t.Errorf("once it is removed: %v", err)
				}
				synctest.Wait()
				time.Sleep(time.Minute)
			})
		})
	}
}

// The documented command runs in the plugin's pod, whose environment names the group.
func TestCheckUninstall_asksForTheGroupOfItsPod(t *testing.T) {
	var asked atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			_, _ = io.WriteString(w, `{"kind":"APIVersions"}`)
		case "/apis":
			_, _ = io.WriteString(w, `{"kind":"APIGroupList","groups":[{"name":"example.org","versions":[{"groupVersion":"example.org/v1","version":"v1"}]}]}`)
		default:
			asked.Store(asked.Load() || strings.HasPrefix(r.URL.Path, "/apis/example.org/v1"))
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"clusters":[{"name":"x","cluster":{"server":%q}}],"contexts":[{"name":"x","context":{"cluster":"x"}}],"current-context":"x"}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv(contract.EnvCNPGGroup, "example.org")
	_ = checkUninstall(t.Context(), []string{"--within", "0s"}, io.Discard, io.Discard) // there is nothing
	if !asked.Load() {
		t.Error("it has not asked for the Clusters of example.org")
	}
}
