package chart

import (
	"slices"
	"testing"

	release "helm.sh/helm/v4/pkg/release/v1"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/yaml"
)

// Before Helm removes anything, a hook has the plugin's program check that no cluster lists the plugin, with an account that may list
// Clusters.
func TestRender_asksBeforeItIsUninstalled(t *testing.T) {
	t.Parallel()
	loaded, err := Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule    string
		values  []string
		account string
	}{
		{"by default", nil, "cnpg-scale-to-zero-plugin"},
		{"in the operator's pod", []string{"operatorSocket.enabled=true"}, "cnpg-manager"},
		{"unless it is not wanted", []string{"uninstall.refuseWhileUsed=false"}, ""},
	} {
		rendered, err := Render(t.Context(), loaded, "cnpg-system", set(t, row.values...))
		if err != nil {
			t.Fatal(err)
		}
		if row.account == "" {
			if len(rendered.Hooks) != 0 {
				t.Errorf("%s: there is a hook", row.rule)
			}
			continue
		}
		if len(rendered.Hooks) != 1 {
			t.Fatalf("%s: there are %d hooks", row.rule, len(rendered.Hooks))
		}
		hook := rendered.Hooks[0]
		var job batchv1.Job
		if err := yaml.UnmarshalStrict([]byte(hook.Manifest), &job); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(hook.Events, []release.HookEvent{release.HookPreDelete}) ||
			!slices.Equal(hook.OutputLogPolicies, []release.HookOutputLogPolicy{release.HookOutputOnFailed}) {
			t.Errorf("%s: the hook is for %v and shows its log on %v", row.rule, hook.Events, hook.OutputLogPolicies)
		}
		pod := job.Spec.Template.Spec
		if pod.ServiceAccountName != row.account || *job.Spec.BackoffLimit != 0 ||
			!slices.Equal(pod.Containers[0].Args, []string{"check-uninstall", "--group=postgresql.cnpg.io"}) {
			t.Errorf("%s: the job is\n%s", row.rule, hook.Manifest)
		}
	}
}
