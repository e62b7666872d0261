package contract

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func entry(manager string, operation metav1.ManagedFieldsOperationType, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, FieldsV1: metav1.NewFieldsV1(fields)}
}

func TestOwns_whatOnlyWeHaveSet(t *testing.T) {
	t.Parallel()
	const suspend, schedule = `{"f:spec":{"f:suspend":{}}}`, `{"f:spec":{"f:schedule":{}}}`
	ours := entry(FieldManager, "Update", suspend)
	for _, row := range []struct {
		rule    string
		entries []metav1.ManagedFieldsEntry
		want    bool
	}{
		{"what we set is ours", []metav1.ManagedFieldsEntry{ours}, true},
		{"what nobody set is not ours", nil, false},
		{"what a person set is not ours", []metav1.ManagedFieldsEntry{entry("kubectl-patch", "Update", suspend)}, false},
		{"an entry without fields holds none", []metav1.ManagedFieldsEntry{ours, {Manager: "x", Operation: "Apply"}}, true},
		{"another field of ours is not this one", []metav1.ManagedFieldsEntry{entry(FieldManager, "Update", schedule)}, false},
		{"what somebody applies beside us is not ours alone", []metav1.ManagedFieldsEntry{ours, entry("argocd-controller", "Apply", suspend)}, false},
		{"in whatever order", []metav1.ManagedFieldsEntry{entry("argocd-controller", "Apply", suspend), ours}, false},
		{"who applies something else takes nothing away", []metav1.ManagedFieldsEntry{ours, entry("argocd-controller", "Apply", schedule)}, true},
		{"a set of fields that is not understood holds none", []metav1.ManagedFieldsEntry{ours, entry("x", "Apply", `[`), entry("y", "Apply", "")}, true},
		{"a name that only begins alike is another field", []metav1.ManagedFieldsEntry{entry(FieldManager, "Update", `{"f:spec":{"f:suspended":{}}}`)}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := SetByUs(row.entries, "spec", "suspend"); got != row.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestUpdater_isAloneAndAppliesNothing(t *testing.T) {
	t.Parallel()
	const suspend, schedule = `{"f:spec":{"f:suspend":{}}}`, `{"f:spec":{"f:schedule":{}}}`
	tool := entry("sablier", "Update", suspend)
	for _, row := range []struct {
		rule    string
		entries []metav1.ManagedFieldsEntry
		want    string
	}{
		{"who set it", []metav1.ManagedFieldsEntry{entry("kubectl", "Apply", schedule), tool}, "sablier"},
		{"nobody", []metav1.ManagedFieldsEntry{entry("sablier", "Update", schedule)}, ""},
		{"not one of two", []metav1.ManagedFieldsEntry{tool, entry("kubectl-edit", "Update", suspend)}, ""},
		{"not who applied it", []metav1.ManagedFieldsEntry{entry("sablier", "Apply", suspend)}, ""},
		{"nor beside one who did", []metav1.ManagedFieldsEntry{tool, entry("argocd-controller", "Apply", suspend)}, ""},
	} {
		if got := Updater(row.entries, "spec", "suspend").Manager; got != row.want {
			t.Errorf("%s: %q, want %q", row.rule, got, row.want)
		}
	}
}

func TestSetByOthers_isNeitherUsNorWhoMadeIt(t *testing.T) {
	t.Parallel()
	const in = `{"f:spec":{"f:containers":{"k:{\"name\":\"postgres\"}":{`
	cpu, image := `"f:requests":{"f:cpu":{}}`, `"f:image":{}`
	for _, row := range []struct {
		rule  string
		entry metav1.ManagedFieldsEntry
		want  bool
	}{
		{"us", entry(FieldManager, "Update", in+cpu+`}}}}`), false},
		{"who made it", entry("manager", "Update", in+image+`,`+cpu+`}}}}`), false},
		{"somebody else", entry("vpa-updater", "Update", in+cpu+`}}}}`), true},
		{"somebody else who set something else", entry("kubectl-patch", "Update", in+`"f:resizePolicy":{}}}}}`), false},
		{"somebody else who set that of another item", entry("vpa-updater", "Update", `{"f:spec":{"f:containers":{"k:{\"name\":\"x\"}":{`+cpu+`}}}}`), false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			item := []string{"spec", "containers", ListItem("postgres")}
			made, path := append(item[:3:3], "image"), append(item[:3:3], "requests", "cpu")
			if got := SetByOthers([]metav1.ManagedFieldsEntry{row.entry}, made, path...); got != row.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestDozes_unlessAPersonHasAppliedTheFence(t *testing.T) {
	t.Parallel()
	ours := []metav1.ManagedFieldsEntry{entry(FieldManager, "Update", `{"f:metadata":{"f:annotations":{"f:cnpg.io/fencedInstances":{}}}}`)}
	for _, row := range []struct {
		rule, applied string
		want          bool
	}{
		{"nobody has applied anything", ``, true},
		{"the manifest has the fence", `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`, false},
		{"it has another one", `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[]"}}}`, true},
		{"it has none", `{"metadata":{"annotations":{"a":"b"}}}`, true},
		{"it names the annotation elsewhere", `{"metadata":{"annotations":{"a":"cnpg.io/fencedInstances"}}}`, true},
		{"it is not understood", `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"`, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			annotations := map[string]string{AnnotationFencedInstances: FencedInstancesAll, lastApplied: row.applied}
			if got := Dozes(annotations, ours); got != row.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func FuzzOwns(f *testing.F) {
	f.Add([]byte(`{"f:spec":{"f:suspend":{}}}`))
	f.Add([]byte(`{"f:spec":null}`))
	f.Add([]byte(`{"f:spec":{"f:suspend":1}}`))
	f.Fuzz(func(t *testing.T, fields []byte) {
		if owns(fields, []string{"spec", "suspend"}) && !owns(fields, []string{"spec"}) {
			t.Error("a field is owned whose parent holds nothing of it")
		}
	})
}
