package fleet

import (
	"context"
	"errors"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestWhoResumes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule        string
		listed      bool
		annotations map[string]string
		resumed     bool
	}{
		{"where the feature is on the sidecar does it", true, map[string]string{contract.AnnotationEnabled: "true"}, false},
		{"where it was turned off the plugin does it", true, map[string]string{contract.AnnotationEnabled: "false"}, true},
		{"without the annotation the plugin does it", true, nil, true},
		{"where the plugin is not listed any more it does it", false, map[string]string{contract.AnnotationEnabled: "true"}, true},
		{"a mistake in an annotation is no wish to turn it off", true, map[string]string{contract.AnnotationEnabled: "yes"}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Annotations: row.annotations}}
			if row.listed {
				cluster.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
			}
			schedule := func(name, of string, marked bool) *cnpgv1.ScheduledBackup {
				s := &cnpgv1.ScheduledBackup{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
					Spec:       cnpgv1.ScheduledBackupSpec{Suspend: ptr.To(true), Cluster: cnpgv1.LocalObjectReference{Name: of}},
				}
				if marked {
					s.Annotations = map[string]string{contract.AnnotationSuspended: "2026-01-01T00:00:00Z"}
					s.ManagedFields = suspendedBy(contract.FieldManager)
				}
				return s
			}
			takenOver := schedule("taken-over", "orders", true)
			takenOver.ManagedFields = suspendedBy("kubectl-edit")
			scheme := runtime.NewScheme()
			if err := cnpgv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithReturnManagedFields().WithObjects(cluster, takenOver, schedule("ours", "orders", true),
				schedule("a-persons", "orders", false), schedule("anothers", "invoices", true)).Build()
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}
			if _, err := (&backups{Client: c}).Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			for name, resumed := range map[string]bool{"ours": row.resumed, "taken-over": false, "a-persons": false, "anothers": false} {
				var s cnpgv1.ScheduledBackup
				if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, &s); err != nil {
					t.Fatal(err)
				}
				if got := !*s.Spec.Suspend; got != resumed {
					t.Errorf("%s resumed: %t, want %t", name, got, resumed)
				}
				if wantMark := name == "anothers" || !row.resumed && name != "a-persons"; marked(&s) != wantMark {
					t.Errorf("%s carries the mark: %t", name, marked(&s))
				}
			}
		})
	}
}

// suspendedBy returns the managedFields of a schedule suspended by these managers.
func suspendedBy(managers ...string) []metav1.ManagedFieldsEntry {
	var entries []metav1.ManagedFieldsEntry
	for _, manager := range managers {
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "postgresql.cnpg.io/v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:suspend":{}}}`),
		})
	}
	return entries
}

// TestWhatIsAFailure makes the API server refuse to resume a schedule.
func TestWhatIsAFailure(t *testing.T) {
	t.Parallel()
	kind := schema.GroupResource{Group: cnpgv1.SchemeGroupVersion.Group, Resource: "scheduledbackups"}
	for _, row := range []struct {
		rule    string
		refusal error
		failure bool
	}{
		{"another replica was faster", apierrors.NewConflict(kind, "ours", errors.New("it was modified")), false},
		{"it is not there any more", apierrors.NewNotFound(kind, "ours"), false},
		{"it may not be changed", apierrors.NewForbidden(kind, "ours", errors.New("no")), true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			scheme := runtime.NewScheme()
			if err := cnpgv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
			ours := &cnpgv1.ScheduledBackup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ours", Annotations: map[string]string{contract.AnnotationSuspended: "2026-01-01T00:00:00Z"}},
				Spec:       cnpgv1.ScheduledBackupSpec{Suspend: ptr.To(true), Cluster: cnpgv1.LocalObjectReference{Name: "orders"}},
			}
			refuse := func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return row.refusal
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, ours).WithInterceptorFuncs(interceptor.Funcs{Patch: refuse}).Build()
			_, err := (&backups{Client: c}).Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)})
			if (err != nil) != row.failure {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
