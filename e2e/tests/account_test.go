package tests

import (
	"fmt"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// pluginAccount is the service account of the plugin, in the operator's namespace.
const pluginAccount = "cnpg-scale-to-zero-plugin"

// asPlugin returns a client with a token of the plugin's service account.
func (s *story) asPlugin() client.Client {
	s.Helper()
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: pluginAccount}}
	s.must(kube.SubResource("token").Create(s.ctx, account, request))
	plugin, err := kube.As(request.Status.Token)
	s.must(err)
	return plugin
}

// With the plugin's own token only what the plugin changes can be changed. That this suffices is shown by the other tests,
// which run with these policies.
func TestPluginsAccountIsLimited(t *testing.T) {
	t.Parallel()
	s := begin(t)
	c := s.running(kube.NewCluster(s.namespace, "guarded", 1, never))
	s.must(kube.Create(s.ctx, scenario.NewScheduledBackup(c, "guarded", "0 0 0 1 1 *")))
	web := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.namespace, Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "deployer"}}
	s.must(kube.Create(s.ctx, web))
	s.must(kube.Create(s.ctx, role))
	plugin := s.asPlugin()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.namespace, Name: name} }
	cluster, schedule := &cnpgv1.Cluster{ObjectMeta: named(c.Name)}, &cnpgv1.ScheduledBackup{ObjectMeta: named("guarded")}
	annotated := func(key, value string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value) }
	refused := func(rule string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'cnpg-scale-to-zero-plugin-") || !strings.Contains(err.Error(), "denied request") {
			t.Errorf("with the plugin's token %s: %v", rule, err)
		}
	}
	for _, row := range []struct {
		rule   string
		object client.Object
		patch  string
	}{
		{"another image", cluster, `{"spec":{"imageName":"example.org/other:17"}}`},
		{"more instances", cluster, `{"spec":{"instances":5}}`},
		{"no plugins", cluster, `{"spec":{"plugins":[]}}`},
		{"superuser access", cluster, `{"spec":{"enableSuperuserAccess":true}}`},
		{"rules of pg_hba", cluster, `{"spec":{"postgresql":{"pg_hba":["host all all all trust"]}}}`},
		{"a label", cluster, `{"metadata":{"labels":{"team":"mine"}}}`},
		{"a finalizer", cluster, `{"metadata":{"finalizers":["example.org/keep"]}}`},
		{"an owner", cluster, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}]}}`},
		{"hibernation on", cluster, annotated(scenario.Hibernation, `"on"`)},
		{"the feature off", cluster, annotated(scenario.Enabled, `"false"`)},
		{"the threshold away", cluster, annotated(scenario.InactivityMinutes, "null")},
		{"an announcement", cluster, annotated("xata.io/scale-to-zero-announced", `"x"`)},
		{"an acknowledgement of none", cluster, annotated("xata.io/scale-to-zero-gateway-ready", `"x"`)},
		{"fencing", cluster, annotated("cnpg.io/fencedInstances", `"[\"*\"]"`)},
		{"somebody's annotation", cluster, annotated("example.org/x", `"y"`)},
		{"a suspension", schedule, `{"spec":{"suspend":true}}`},
		{"a schedule", schedule, `{"spec":{"schedule":"0 0 0 2 2 *"}}`},
		{"the mark", schedule, annotated(scenario.Suspended, `"x"`)},
	} {
		refused("patches "+row.rule, plugin.Patch(s.ctx, row.object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(row.patch)), client.DryRunAll))
	}

	redirected := web.DeepCopy()
	redirected.Endpoints[0].Addresses = []string{"192.0.2.2"}
	refused("redirects a Service", plugin.Update(s.ctx, redirected, client.DryRunAll))
	refused("takes a slice away", plugin.Delete(s.ctx, web, client.DryRunAll))
	forged := web.DeepCopy()
	forged.Name, forged.ResourceVersion = "forged", ""
	refused("makes a slice of somebody's", plugin.Create(s.ctx, forged, client.DryRunAll))
	refused("takes a Role away", plugin.Delete(s.ctx, role, client.DryRunAll))
	refused("makes a Role", plugin.Create(s.ctx, &rbacv1.Role{ObjectMeta: named("evil")}, client.DryRunAll))
	refused("makes a RoleBinding", plugin.Create(s.ctx, &rbacv1.RoleBinding{
		ObjectMeta: named("guarded-scale-to-zero"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "guarded-scale-to-zero"},
	}, client.DryRunAll))
	refused("makes a ConfigMap", plugin.Create(s.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: scenario.OperatorNamespace, Name: "cnpg-controller-manager-config"}, Immutable: ptr.To(true),
	}, client.DryRunAll))

	s.sleeps(c) // with the policies
	s.answers(c)
}
