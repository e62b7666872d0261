package policies

import (
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Before Kubernetes 1.36 the API server has MutatingAdmissionPolicies as a beta only, which is off by default.
var (
	betaArguments = map[string]string{
		"feature-gates": "MutatingAdmissionPolicy=true", "runtime-config": "admissionregistration.k8s.io/v1beta1=true",
	}
	beta = schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1beta1"}
)

func TestEnrolment_listsThePluginInNewClusters(t *testing.T) {
	t.Parallel()
	const label = "scale-to-zero.xata.io/enrol"
	s := connect(t, apiservertest.StartWith(t, betaArguments, "clusters"))
	labelled := &corev1.Namespace{}
	labelled.Name, labelled.Labels = "previews", map[string]string{label: "true"}
	before := cluster("previews", "before", "")
	before.Spec.Plugins = nil
	s.create(labelled, before)
	for _, object := range s.objects("../enrolment") {
		kind := object.GetObjectKind().GroupVersionKind()
		if _, err := s.admin.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) {
			object.SetAPIVersion(beta.String())
		}
		t.Log(object.GetAPIVersion(), object.GetKind())
		s.create(object)
	}
	make := func(namespace, name string, plugins ...cnpgv1.PluginConfiguration) *cnpgv1.Cluster {
		c := cluster(namespace, name, "")
		c.Spec.Plugins = plugins
		return c
	}
	s.comes("the policy holds", func() bool {
		c := make("previews", "asked")
		err := s.admin.Create(t.Context(), c, client.DryRunAll) // the policy learns of the resource late
		return err == nil && len(c.Spec.Plugins) != 0
	})
	ours, other := cnpgv1.PluginConfiguration{Name: contract.PluginName}, cnpgv1.PluginConfiguration{Name: "other", Parameters: map[string]string{"a": "b"}}
	off := cnpgv1.PluginConfiguration{Name: contract.PluginName, Enabled: ptr.To(false)}
	excepted := make("previews", "excepted")
	excepted.Labels = map[string]string{label: "false"}
	for _, row := range []struct {
		rule string
		made *cnpgv1.Cluster
		want []string
	}{
		{"a new Cluster of a labelled Namespace lists it", make("previews", "plain"), []string{ours.Name}},
		{"after those that it lists", make("previews", "beside", other), []string{other.Name, ours.Name}},
		{"one that lists it is left as it is", make("previews", "listing", ours, other), []string{ours.Name, other.Name}},
		{"so is one that has switched it off", make("previews", "off", off), []string{ours.Name}},
		{"one with the label of an exception does not", excepted, nil},
		{"one of another Namespace does not", make("shop", "elsewhere"), nil},
	} {
		s.create(row.made)
		var got []string
		for _, p := range row.made.Spec.Plugins {
			got = append(got, p.Name)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: plugins (-want +got):\n%s", row.rule, diff)
		}
	}
	s.must(s.admin.Get(t.Context(), client.ObjectKeyFromObject(before), before))
	before.Annotations["changed"] = "yes"
	s.must(s.admin.Update(t.Context(), before))
	if len(before.Spec.Plugins) != 0 {
		t.Error("a Cluster that is updated lists it, and would restart")
	}
}
