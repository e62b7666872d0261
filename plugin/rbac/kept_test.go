package rbac

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// through passes an object through the transform function of its type.
func through[T client.Object](t *testing.T, object T) T {
	t.Helper()
	for kind, options := range ByObject(resource) {
		if _, ok := kind.(T); ok {
			kept, err := options.Transform(object)
			if err != nil {
				t.Fatal(err)
			}
			return kept.(T)
		}
	}
	t.Fatalf("%T is not watched", object)
	return object
}

// written adds what the API server adds to an object.
func written[T client.Object](object T) T {
	object.SetUID("r")
	object.SetResourceVersion("7")
	object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "plugin"}})
	return object
}

func TestOfTheRoleOfADozingClusterThePodIsKeptToo(t *testing.T) {
	t.Parallel()
	role := Role(dozing(), resource)
	kept := through(t, written(role.DeepCopy()))
	if diff := cmp.Diff([]rbacv1.PolicyRule{{ResourceNames: []string{"orders-1"}}}, kept.Rules); diff != "" || kept.Labels != nil {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	role.ResourceVersion = "7"
	for _, again := range []*rbacv1.Role{kept, through(t, kept.DeepCopy())} {
		if diff := cmp.Diff(role, wholeRole(again, resource)); diff != "" {
			t.Errorf("the Role that follows from it (-want +got):\n%s", diff)
		}
	}
}

func TestOfWhatIsAsItWasMadeOnlyTheOwnerIsKept(t *testing.T) {
	t.Parallel()
	want := metav1.ObjectMeta{
		Namespace: "shop", Name: "orders.scale-to-zero", ResourceVersion: "7",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: "orders", UID: "u", Controller: ptr.To(true)}},
	}
	role, binding := Role(listing(), resource), RoleBinding(listing(), resource)
	keptRole, keptBinding := through(t, written(role.DeepCopy())), through(t, written(binding.DeepCopy()))
	if diff := cmp.Diff(&rbacv1.Role{ObjectMeta: want}, keptRole); diff != "" {
		t.Errorf("Role (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&rbacv1.RoleBinding{ObjectMeta: want}, keptBinding); diff != "" {
		t.Errorf("RoleBinding (-want +got):\n%s", diff)
	}
	role.ResourceVersion, binding.ResourceVersion = "7", "7"
	if diff := cmp.Diff(role, wholeRole(keptRole, resource)); diff != "" {
		t.Errorf("the Role that follows from it (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(binding, wholeBinding(keptBinding, resource)); diff != "" {
		t.Errorf("the RoleBinding that follows from it (-want +got):\n%s", diff)
	}
}

func TestWhatDiffersIsKeptWhole(t *testing.T) {
	t.Parallel()
	for rule, change := range map[string]func(*rbacv1.Role, *rbacv1.RoleBinding){
		"other rules and subjects": func(r *rbacv1.Role, b *rbacv1.RoleBinding) { r.Rules, b.Subjects = r.Rules[:1], nil },
		"rules and a role of the binding that somebody changed": func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Rules[0].Verbs, b.RoleRef.Name = []string{"*"}, "another"
		},
		"another label": func(r *rbacv1.Role, b *rbacv1.RoleBinding) { r.Labels["team"], b.Labels["team"] = "x", "x" },
		"an annotation, which a write must not remove": func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Annotations, b.Annotations = map[string]string{"a": "b"}, map[string]string{"a": "b"}
		},
		"a finalizer, which a write must not remove": func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Finalizers, b.Finalizers = []string{"example.org/f"}, []string{"example.org/f"}
		},
		"another owner besides": func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.OwnerReferences = append(r.OwnerReferences, metav1.OwnerReference{Kind: "Team", UID: "t"})
			b.OwnerReferences = append(b.OwnerReferences, metav1.OwnerReference{Kind: "Team", UID: "t"})
		},
		"no owner": func(r *rbacv1.Role, b *rbacv1.RoleBinding) { r.OwnerReferences, b.OwnerReferences = nil, nil },
		"the name of another cluster": func(r *rbacv1.Role, b *rbacv1.RoleBinding) {
			r.Name, b.Name = "sales.scale-to-zero", "sales.scale-to-zero"
		},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			role, binding := written(Role(listing(), resource)), written(RoleBinding(listing(), resource))
			change(role, binding)
			wantRole, wantBinding := role.DeepCopy(), binding.DeepCopy()
			wantRole.ManagedFields, wantBinding.ManagedFields = nil, nil
			if diff := cmp.Diff(wantRole, wholeRole(through(t, role), resource)); diff != "" {
				t.Errorf("Role (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantBinding, wholeBinding(through(t, binding), resource)); diff != "" {
				t.Errorf("RoleBinding (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAMissedDeletionIsHandedOn(t *testing.T) {
	t.Parallel()
	marker := toolscache.DeletedFinalStateUnknown{Key: "shop/x"}
	for kind, options := range ByObject(resource) {
		if got, err := options.Transform(marker); err != nil || got != any(marker) {
			t.Errorf("%T: got %v, %v", kind, got, err)
		}
	}
}

// The informers transform the objects of a watch list twice: when each arrives, and when the list is complete.
func TestWhatIsKeptIsKeptAgainAsItIs(t *testing.T) {
	t.Parallel()
	kept := through(t, written(Role(listing(), resource)))
	if diff := cmp.Diff(kept.DeepCopy(), through(t, kept)); diff != "" {
		t.Errorf("Role (-once +again):\n%s", diff)
	}
	bound := through(t, written(RoleBinding(listing(), resource)))
	if diff := cmp.Diff(bound.DeepCopy(), through(t, bound)); diff != "" {
		t.Errorf("RoleBinding (-once +again):\n%s", diff)
	}
}
