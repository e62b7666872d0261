package policies

import (
	"context"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"net/netip"

	"github.com/cnpg-i/scale-to-zero/plugin/rbac"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// theirs are objects that the plugin did not make, and that its rights would let it change.
func theirs() (*discoveryv1.EndpointSlice, *rbacv1.Role, *rbacv1.RoleBinding, *corev1.ConfigMap) {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "web", discoveryv1.LabelServiceName: "web"}}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: named("web-abc"), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.8"}}},
		Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(8080)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	role := &rbacv1.Role{ObjectMeta: named("deployer"), Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: named("deployer"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "deployer"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "shop", Name: "deployer"}},
	}
	return slice, role, binding, &corev1.ConfigMap{ObjectMeta: named("cnpg-controller-manager-config"), Data: map[string]string{"a": "b"}}
}

// fenced is a Cluster of which a person has fenced one instance.
func fenced() *cnpgv1.Cluster {
	c := cluster("shop", "fenced", "")
	c.Annotations[contract.AnnotationFencedInstances] = `["fenced-1"]`
	return c
}

// labelled is the first pod of a cluster.
func labelled(cluster, role string) *corev1.Pod {
	pod := instance("shop", cluster, 1, "")
	pod.Labels = map[string]string{endpointslice.LabelCluster: cluster, endpointslice.LabelPodRole: role}
	return pod
}

// routed is a slice as the gateway makes it for the cluster's Service.
func routed() *discoveryv1.EndpointSlice {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders-rw", UID: "service"}}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.Ports = []corev1.ServicePort{{Name: "postgres", Port: contract.PostgresPort}}
	replica := endpointslice.Replica{Pod: "scale-to-zero-1", UID: "pod", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	return &endpointslice.Wanted(service, "orders", replica, 10007)[0]
}

// plugin is a server with the policies of the plugin's account, and a client of that account, which may do everything else.
func plugin(t *testing.T) (*server, client.Client) {
	t.Helper()
	s := begin(t, resources...)
	s.enrol(cluster("shop", "orders", "", contract.PluginName))
	slice, role, binding, config := theirs()
	pooler := labelled("pooler", "pooler")
	s.create(slice, role, binding, config, fenced(), pooler, labelled("dozing", "instance"))
	s.install("plugin")
	c := s.others(t)["the plugin"]
	for _, object := range []client.Object{cluster("shop", "orders", ""), nightly("orders"), slice, role, config} {
		s.comes("the policies hold", func() bool {
			return byPolicy(write{object: object, patch: `{"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}}}`}.try(t.Context(), c, client.DryRunAll))
		})
	}
	s.comes("the policy of pods holds", func() bool { return byPolicy(c.Delete(t.Context(), pooler.DeepCopy(), client.DryRunAll)) })
	return s, c
}

func TestPluginPolicies(t *testing.T) {
	t.Parallel()
	s, c := plugin(t)
	t.Run("forbidden writes", func(t *testing.T) { s.refusesThePlugin(t, c) })
	t.Run("the plugin's own writes", func(t *testing.T) { s.takesThePluginsWrites(t, c) })
	t.Run("other accounts", func(t *testing.T) {
		slice, _, _, config := theirs()
		manager := s.as(func(c *rest.Config) {
			c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:cnpg-system:cnpg-manager"}
		})
		for _, who := range []client.Client{s.admin, manager} {
			for _, object := range []client.Object{cluster("shop", "orders", ""), nightly("orders"), slice, config} {
				if err := (write{object: object, patch: `{"metadata":{"labels":{"a":"b"}}}`}).try(t.Context(), who, client.DryRunAll); err != nil {
					t.Errorf("%T: %v", object, err)
				}
			}
		}
	})
}

// attempt is what somebody with the plugin's token could do if it were not for the policies.
type attempt struct {
	rule string
	do   func(context.Context, client.Client) error
}

// tries are patches.
func tries(object client.Object, patches map[string]string) []attempt {
	var found []attempt
	for rule, patch := range patches {
		found = append(found, attempt{rule, func(ctx context.Context, c client.Client) error {
			return write{object: object, patch: patch}.try(ctx, c, client.DryRunAll)
		}})
	}
	return found
}

func forbiddenToThePlugin() []attempt {
	makes := func(object client.Object, change func()) func(context.Context, client.Client) error {
		change()
		return func(ctx context.Context, c client.Client) error { return c.Create(ctx, object, client.DryRunAll) }
	}
	deletes := func(object client.Object) func(context.Context, client.Client) error {
		return func(ctx context.Context, c client.Client) error { return c.Delete(ctx, object, client.DryRunAll) }
	}
	orders, payments := cluster("shop", "orders", ""), cluster("shop", "payments", "")
	payments.UID = "uid"
	slice, role, binding, config := theirs()
	unowned, foreign, privileged, many := routed(), routed(), routed(), routed()
	payments.Annotations[contract.AnnotationDozeMinutes], payments.Status.CurrentPrimary = "5", "payments-2"
	everyPod, otherPod, status := rbac.Role(payments, cnpgv1.SchemeGroupVersion), rbac.Role(payments, cnpgv1.SchemeGroupVersion), rbac.Role(payments, cnpgv1.SchemeGroupVersion)
	last := len(everyPod.Rules) - 1
	wide, other, misnamed := rbac.Role(payments, cnpgv1.SchemeGroupVersion), rbac.Role(payments, cnpgv1.SchemeGroupVersion), rbac.Role(payments, cnpgv1.SchemeGroupVersion)
	strong, elsewhere := rbac.RoleBinding(payments, cnpgv1.SchemeGroupVersion), rbac.RoleBinding(payments, cnpgv1.SchemeGroupVersion)
	rows := []attempt{
		{"a slice of another controller", makes(foreign, func() { foreign.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io" })},
		{"a slice that no Service owns", makes(unowned, func() { unowned.OwnerReferences = nil })},
		{"a slice of a privileged port", makes(privileged, func() { privileged.Ports[0].Port = ptr.To(int32(443)) })},
		{"a slice of many addresses", makes(many, func() { many.Endpoints = append(many.Endpoints, many.Endpoints[0]) })},
		{"a Service's own slice away", deletes(slice)},
		{"a pooler's pod away", deletes(labelled("pooler", "pooler"))},
		{"somebody's Role away", deletes(role)},
		{"somebody's RoleBinding away", deletes(binding)},
		{"a Role that grants Secrets", makes(wide, func() {
			wide.Rules = append(wide.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}})
		})},
		{"a Role for every Cluster", makes(other, func() { other.Rules[0].ResourceNames = nil })},
		{"a Role for every pod", makes(everyPod, func() { everyPod.Rules[last].ResourceNames = nil })},
		{"a Role for another cluster's pod", makes(otherPod, func() { otherPod.Rules[last].ResourceNames = []string{"orders-1"} })},
		{"a Role for the status of its pod", makes(status, func() { status.Rules[last].Resources = []string{"pods/status"} })},
		{"a Role of another name", makes(misnamed, func() { misnamed.Name = "evil" })},
		{"a RoleBinding of another Role", makes(strong, func() { strong.RoleRef.Kind, strong.RoleRef.Name = "ClusterRole", "cluster-admin" })},
		{"a RoleBinding of another namespace's account", makes(elsewhere, func() { elsewhere.Subjects[0].Namespace = "vault" })},
		{"a ConfigMap", makes(config, func() { config.Name = "evil" })},
	}
	_, _, _, config = theirs()
	rows = append(rows, tries(orders, map[string]string{
		"an image":                        `{"spec":{"imageName":"example.org/evil:17"}}`,
		"another plugin":                  `{"spec":{"plugins":[{"name":"evil.example.org"}]}}`,
		"lines of pg_hba":                 `{"spec":{"postgresql":{"pg_hba":["host all all all trust"]}}}`,
		"a label":                         `{"metadata":{"labels":{"team":"blue"}}}`,
		"no finalizers":                   `{"metadata":{"finalizers":null}}`,
		"hibernation on":                  `{"metadata":{"annotations":{"cnpg.io/hibernation":"on"}}}`,
		"the feature off":                 `{"metadata":{"annotations":{"xata.io/scale-to-zero-enabled":"false"}}}`,
		"to sleep":                        `{"metadata":{"annotations":{"xata.io/scale-to-zero-sleep-requested":"2026-03-01T00:00:00Z"}}}`,
		"whether addresses are told":      `{"metadata":{"annotations":{"xata.io/scale-to-zero-gateway-address":"accept"}}}`,
		"fencing":                         `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`,
		"an announcement":                 `{"metadata":{"annotations":{"xata.io/scale-to-zero-announced":"x"}}}`,
		"an acknowledgement of nothing":   `{"metadata":{"annotations":{"xata.io/scale-to-zero-gateway-ready":"x"}}}`,
		"to hold for nothing":             `{"metadata":{"annotations":{"xata.io/scale-to-zero-gateway-holding":"x"}}}`,
		"since when it dozes":             `{"metadata":{"annotations":{"xata.io/scale-to-zero-dozing-since":"2026-03-01T00:00:00Z"}}}`,
		"that PostgreSQL has stopped":     `{"metadata":{"annotations":{"xata.io/scale-to-zero-postgres-stopped":"x"}}}`,
		"that it was not started":         `{"metadata":{"annotations":{"xata.io/scale-to-zero-restart-failed":"x"}}}`,
		"how long it is idle":             `{"metadata":{"annotations":{"xata.io/scale-to-zero-doze-minutes":"1"}}}`,
		"somebody's annotation away":      `{"metadata":{"annotations":{"example.org/note":null}}}`,
		"one of its keys and an image":    `{"metadata":{"annotations":{"xata.io/scale-to-zero-last-wake":"x"}},"spec":{"imageName":"example.org/evil:17"}}`,
		"an owner of the plugin's liking": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`,
	})...)
	rows = append(rows, tries(fenced(), map[string]string{
		"a person's fence away":    `{"metadata":{"annotations":{"cnpg.io/fencedInstances":null}}}`,
		"a person's fence widened": `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`,
	})...)
	rows = append(rows, tries(nightly("orders"), map[string]string{
		"a suspension":                   `{"spec":{"suspend":true}}`,
		"a schedule":                     `{"spec":{"schedule":"0 0 0 1 1 *"}}`,
		"the mark of a schedule":         `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":"x"}}}`,
		"a label of a ScheduledBackup":   `{"metadata":{"labels":{"a":"b"}}}`,
		"an annotation of a schedule":    `{"metadata":{"annotations":{"example.org/note":null}}}`,
		"a finalizer of ScheduledBackup": `{"metadata":{"finalizers":["example.org/evil"]}}`,
	})...)
	rows = append(rows, tries(slice, map[string]string{
		"where a Service's own slice leads": `{"endpoints":[{"addresses":["10.9.9.9"]}]}`,
		"a Service's own slice taken over":  `{"metadata":{"labels":{"scale-to-zero.cnpg-i.io/replica":"x","endpointslice.kubernetes.io/managed-by":"scale-to-zero.cnpg-i.io"}}}`,
	})...)
	rows = append(rows, tries(role, map[string]string{"somebody's Role": `{"rules":[]}`})...)
	rows = append(rows, tries(binding, map[string]string{"somebody's RoleBinding": `{"subjects":[]}`})...)
	return append(rows, tries(config, map[string]string{"the operator's ConfigMap": `{"data":{"a":"evil"}}`})...)
}

func (s *server) refusesThePlugin(t *testing.T, c client.Client) {
	for _, row := range forbiddenToThePlugin() {
		if err := row.do(t.Context(), c); !byPolicy(err) {
			t.Errorf("%s: %v", row.rule, err)
		}
		if err := row.do(t.Context(), s.admin); err != nil {
			t.Errorf("%s: refused to a person: %v", row.rule, err)
		}
	}
}

// takesThePluginsWrites has the plugin's account do what the plugin does, by its own builders.
func (s *server) takesThePluginsWrites(t *testing.T, c client.Client) {
	ctx := t.Context()
	orders := func() *cnpgv1.Cluster {
		var living cnpgv1.Cluster
		s.must(s.admin.Get(ctx, types.NamespacedName{Namespace: "shop", Name: "orders"}, &living))
		return &living
	}
	person := func(object client.Object, patch string) {
		t.Helper()
		s.must(s.admin.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch))))
	}
	annotate := func(annotations map[string]*string) func() error {
		return func() error { return waker.Annotate(ctx, c, orders(), annotations) }
	}
	announced, named, request := "uid 2026-03-01T00:00:30Z", "mine: it is an ExternalName", "2026-03-01T00:01:00Z"
	person(orders(), `{"metadata":{"annotations":{"xata.io/scale-to-zero-announced":"`+announced+`"}}}`)
	slice := routed()
	role, binding := rbac.Role(orders(), cnpgv1.SchemeGroupVersion), rbac.RoleBinding(orders(), cnpgv1.SchemeGroupVersion)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "scale-to-zero-ports-10000", Labels: map[string]string{ports.Label: ports.LabelValue},
	}}
	for _, step := range []struct {
		rule string
		do   func() error
	}{
		{"delete its Role", func() error { return c.Delete(ctx, role.DeepCopy()) }},
		{"make its Role", func() error { return c.Create(ctx, role) }},
		{"update its Role", func() error { return c.Update(ctx, role) }},
		{"update the Role of a cluster that dozes", func() error {
			dozing := orders()
			dozing.Annotations[contract.AnnotationDozeMinutes], dozing.Status.CurrentPrimary = "5", "orders-2"
			role.Rules = rbac.Role(dozing, cnpgv1.SchemeGroupVersion).Rules
			return c.Update(ctx, role)
		}},
		{"delete its RoleBinding", func() error { return c.Delete(ctx, binding.DeepCopy()) }},
		{"make its RoleBinding", func() error { return c.Create(ctx, binding) }},
		{"update its RoleBinding", func() error { return c.Update(ctx, binding) }},
		{"make the ConfigMap of its ports", func() error { return c.Create(ctx, config) }},
		{"update the ConfigMap of its ports", func() error { config.Data = map[string]string{"10000": "x"}; return c.Update(ctx, config) }},
		{"make a slice", func() error { return c.Create(ctx, slice) }},
		{"mend a slice", func() error {
			delete(slice.Labels, discoveryv1.LabelManagedBy)
			s.must(s.admin.Update(ctx, slice))
			slice.Labels[discoveryv1.LabelManagedBy] = endpointslice.ManagedBy
			return c.Update(ctx, slice)
		}},
		{"acknowledge", annotate(map[string]*string{contract.AnnotationGatewayReady: &announced})},
		{"name a Service", annotate(map[string]*string{contract.AnnotationUnroutableServices: &named})},
		{"name it no longer", annotate(map[string]*string{contract.AnnotationUnroutableServices: nil})},
		{"wake", func() error {
			person(orders(), `{"metadata":{"annotations":{"cnpg.io/hibernation":"on","xata.io/scale-to-zero-asleep-since":"x","xata.io/scale-to-zero-asleep-reason":"x","xata.io/scale-to-zero-sleep-requested":"2026-03-01T00:00:00Z"}}}`)
			return annotate(map[string]*string{
				contract.AnnotationHibernation: nil, contract.AnnotationAsleepSince: nil, contract.AnnotationAsleepReason: nil,
				contract.AnnotationAnnounced: nil, contract.AnnotationGatewayReady: nil, contract.AnnotationSleepRequested: nil,
				contract.AnnotationLastWake: &named,
			})()
		}},
		{"hold for a doze", func() error {
			doze := announced + " doze"
			person(orders(), `{"metadata":{"annotations":{"xata.io/scale-to-zero-announced":"`+doze+`"}}}`)
			return annotate(map[string]*string{contract.AnnotationGatewayHolding: &doze})()
		}},
		{"withdraw the announcement of a doze", annotate(map[string]*string{
			contract.AnnotationAnnounced: nil, contract.AnnotationGatewayReady: nil, contract.AnnotationGatewayHolding: nil,
		})},
		{"say that a fenced PostgreSQL has stopped", func() error {
			person(orders(), `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]","xata.io/scale-to-zero-dozing-since":"x"}}}`)
			return annotate(map[string]*string{contract.AnnotationPostgresStopped: &named})()
		}},
		{"also where a person has lifted the fence since", func() error {
			person(orders(), `{"metadata":{"annotations":{"cnpg.io/fencedInstances":null,"xata.io/scale-to-zero-postgres-stopped":null}}}`)
			return annotate(map[string]*string{contract.AnnotationPostgresStopped: &named})()
		}},
		{"request that a cluster that dozes hibernates", func() error {
			person(orders(), `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]","xata.io/scale-to-zero-dozing-since":"x","xata.io/scale-to-zero-postgres-stopped":"x"}}}`)
			return annotate(map[string]*string{contract.AnnotationSleepRequested: &request})()
		}},
		{"wake from a doze", func() error {
			return annotate(map[string]*string{
				contract.AnnotationFencedInstances: nil, contract.AnnotationDozingSince: nil, contract.AnnotationPostgresStopped: nil, contract.AnnotationLastWake: &named,
				contract.AnnotationSleepRequested: nil,
			})()
		}},
		{"delete an instance", func() error { return c.Delete(ctx, labelled("dozing", "instance"), client.DryRunAll) }},
		{"resume a marked ScheduledBackup", func() error {
			person(nightly("orders"), `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":"x"}},"spec":{"suspend":true}}`)
			return write{object: nightly("orders"), patch: `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":null}},"spec":{"suspend":false}}`}.try(ctx, c)
		}},
		{"remove the mark of one that a person resumed", func() error {
			person(nightly("orders"), `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":"x"}}}`)
			return write{object: nightly("orders"), patch: `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":null}}}`}.try(ctx, c)
		}},
		{"delete its slices", func() error {
			return c.DeleteAllOf(ctx, &discoveryv1.EndpointSlice{}, client.InNamespace("shop"), client.MatchingLabels{discoveryv1.LabelManagedBy: endpointslice.ManagedBy})
		}},
	} {
		if err := step.do(); err != nil {
			t.Errorf("the plugin cannot %s: %v", step.rule, err)
		}
	}
	var left discoveryv1.EndpointSliceList
	s.must(s.admin.List(ctx, &left, client.InNamespace("shop")))
	if len(left.Items) != 1 || !strings.HasPrefix(left.Items[0].Name, "web") {
		t.Errorf("slices are left: %v", left.Items)
	}
	s.must(s.admin.Patch(ctx, orders(), client.RawPatch(types.MergePatchType, large())))
	if err := annotate(map[string]*string{contract.AnnotationLastWake: &named})(); err != nil {
		t.Errorf("the plugin cannot write to a large Cluster: %v", err)
	}
}
