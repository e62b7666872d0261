package backups

import (
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cnpg-i/scale-to-zero/plugin/identity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

func TestWhoResumes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule        string
		listed      bool
		annotations map[string]string
		resumed     bool
	}{
		{"where the feature is on the sidecar does it", true, map[string]string{idle.KeyEnabled: "true"}, false},
		{"where it was turned off the plugin does it", true, map[string]string{idle.KeyEnabled: "false"}, true},
		{"without the annotation the plugin does it", true, nil, true},
		{"where the plugin is not listed any more it does it", false, map[string]string{idle.KeyEnabled: "true"}, true},
		{"a mistake in an annotation is no wish to turn it off", true, map[string]string{idle.KeyEnabled: "yes"}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Annotations: row.annotations}}
			if row.listed {
				cluster.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: identity.PluginName}}
			}
			schedule := func(name, of string, marked bool) *cnpgv1.ScheduledBackup {
				s := &cnpgv1.ScheduledBackup{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
					Spec:       cnpgv1.ScheduledBackupSpec{Suspend: ptr.To(true), Cluster: cnpgv1.LocalObjectReference{Name: of}},
				}
				if marked {
					s.Annotations = map[string]string{idle.KeySuspended: "2026-01-01T00:00:00Z"}
				}
				return s
			}
			scheme := runtime.NewScheme()
			if err := cnpgv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, schedule("ours", "orders", true),
				schedule("a-persons", "orders", false), schedule("anothers", "invoices", true)).Build()
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}
			if _, err := (&Reconciler{Client: c}).Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			for name, resumed := range map[string]bool{"ours": row.resumed, "a-persons": false, "anothers": false} {
				var s cnpgv1.ScheduledBackup
				if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, &s); err != nil {
					t.Fatal(err)
				}
				if got := !*s.Spec.Suspend; got != resumed {
					t.Errorf("%s resumed: %t, want %t", name, got, resumed)
				}
				if resumed && marked(&s) {
					t.Errorf("%s still carries the mark", name)
				}
			}
		})
	}
}
