package policies

import (
	"context"
	"fmt"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"net/netip"

	"github.com/cnpg-i/scale-to-zero/plugin/fleet"
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

// serving is a Service of that namespace.
func serving(namespace, name string, port int32, selector map[string]string) *corev1.Service {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.Ports, service.Spec.Selector = []corev1.ServicePort{{Name: "postgres", Port: port}}, selector
	return service
}

// byTheOperator are the labels by which Services are the operator's.
var byTheOperator = map[string]string{"app.kubernetes.io/managed-by": "cloudnative-pg"}

// routed is a slice as the gateway makes it for a Service of the cluster orders.
func routed(service *corev1.Service) *discoveryv1.EndpointSlice {
	replica := endpointslice.Replica{Pod: "scale-to-zero-1", UID: "pod", Node: "node", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
	return &endpointslice.Wanted(service, "orders", replica, 10007)[0]
}

// pool is a Pooler of the cluster.
func pool(cluster, name string, instances int32, mark string) *cnpgv1.Pooler {
	pooler := &cnpgv1.Pooler{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	pooler.Spec = cnpgv1.PoolerSpec{
		Cluster: cnpgv1.LocalObjectReference{Name: cluster}, Instances: &instances, PgBouncer: &cnpgv1.PgBouncerSpec{},
	}
	if mark != "" {
		pooler.Annotations = map[string]string{contract.AnnotationInstances: mark}
	}
	return pooler
}

// toZero scales a Pooler of two instances to zero, upTo one that was so up again.
const toZero = `{"metadata":{"annotations":{"xata.io/scale-to-zero-instances":"2"}},"spec":{"instances":0}}`

func upTo(instances int) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{"xata.io/scale-to-zero-instances":null}},"spec":{"instances":%d}}`, instances)
}

// sleeper is a hibernated Cluster whose Poolers sleep by its Namespace's default, unless own says otherwise, and whose
// Backups may become seven days old by another.
func sleeper(name, own string, plugins ...string) *cnpgv1.Cluster {
	c := cluster("shop", name, "", plugins...)
	c.Annotations[contract.AnnotationHibernation] = "on"
	c.Annotations[contract.AnnotationDefaults] = `{"` + contract.AnnotationPoolers + `":"sleep","` + contract.AnnotationBackupMaxAge + `":"7d"}`
	if own != "" {
		c.Annotations[contract.AnnotationPoolers] = own
	}
	return c
}

// aged is a Backup as the plugin makes one of the cluster.
func aged(of string, change func(*cnpgv1.Backup)) *cnpgv1.Backup {
	backup := &cnpgv1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: of + "-260301120000", Labels: map[string]string{
			contract.LabelManagedBy: contract.ManagedBy, endpointslice.LabelCluster: of,
		}},
		Spec: cnpgv1.BackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: of}},
	}
	if change != nil {
		change(backup)
	}
	return backup
}

func unlabelled(b *cnpgv1.Backup) { b.Labels = nil }

// world is what is there before the policies are.
type world struct {
	// rw is the Service of the cluster orders, inherited one that selects its instances by a label of spec.inheritedMetadata.
	rw, inherited *corev1.Service
	// pooled is one of a Pooler.
	pooled *corev1.Service
	// api and foreign are Services that select no instance, and one that selects those of another cluster. So does managed,
	// with the operator's label.
	api, foreign, managed *corev1.Service
	// payments lists the plugin and has no rights yet, plain does not list it, and a person has hibernated and fenced it.
	payments, plain *cnpgv1.Cluster
	// pod is one of no cluster, unlisted an instance of plain.
	pod, unlisted *corev1.Pod
}

func (s *server) world() *world {
	s.t.Helper()
	of := func(cluster string) map[string]string { return map[string]string{endpointslice.LabelCluster: cluster} }
	w := &world{
		rw:        serving("shop", "orders-rw", contract.PostgresPort, of("orders")),
		inherited: serving("shop", "inherited", contract.PostgresPort, map[string]string{"team": "red"}),
		pooled:    serving("shop", "pooled", contract.PostgresPort, map[string]string{"cnpg.io/poolerName": "awake"}),
		api:       serving("vault", "api", 8443, map[string]string{"app": "api"}),
		foreign:   serving("shop", "others", contract.PostgresPort, of("plain")),
		managed:   serving("shop", "plain-rw", contract.PostgresPort, of("plain")),
		payments:  cluster("shop", "payments", "", contract.PluginName), plain: cluster("shop", "plain", ""),
		pod: instance("vault", "api", 1, ""), unlisted: labelled("plain", "instance"),
	}
	w.plain.Annotations[contract.AnnotationHibernation], w.plain.Annotations[contract.AnnotationFencedInstances] = "on", contract.FencedInstancesAll
	w.payments.Annotations[contract.AnnotationDozeMinutes] = "5"
	w.payments.Annotations[contract.AnnotationBackupMaxAge] = "7d"
	w.plain.Annotations[contract.AnnotationBackupMaxAge] = "7d"
	running := sleeper("running", contract.PoolersSleep, contract.PluginName)
	delete(running.Annotations, contract.AnnotationHibernation)
	w.managed.Labels = byTheOperator
	w.pooled.Spec.Ports[0].TargetPort = intstr.FromString(endpointslice.NamePgBouncer)
	s.create(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "vault"}}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "vault", Name: "default"}},
		w.rw, w.inherited, w.pooled, w.api, w.foreign, w.managed, w.payments, w.plain, w.pod, w.unlisted,
		sleeper("by-default", "", contract.PluginName), sleeper("by-annotation", contract.PoolersSleep, contract.PluginName),
		sleeper("none", contract.None, contract.PluginName), sleeper("removed", contract.PoolersSleep), running,
	)
	for _, of := range []string{"by-default", "by-annotation", "none", "removed", "running"} {
		s.create(pool(of, of, 2, ""))
	}
	w.payments.Status.CurrentPrimary = "payments-2"
	return w
}

// plugin is a server with the policies of the plugin's account, and a client of that account, which may do everything else.
func plugin(t testing.TB) (*server, client.Client, *world) {
	t.Helper()
	s := begin(t, resources...)
	s.enrol(cluster("shop", "orders", "", contract.PluginName))
	w := s.world()
	slice, role, binding, config := theirs()
	pooler := labelled("pooler", "pooler")
	s.create(slice, role, binding, config, fenced(), pooler, labelled("dozing", "instance"), pool("removed", "asleep", 0, "3"), pool("removed", "malformed", 0, "3000000000"))
	s.install("plugin")
	c := s.others(t)["the plugin"]
	for _, object := range []client.Object{cluster("shop", "orders", ""), nightly("orders"), pool("running", "running", 2, ""), slice, role, config} {
		s.comes("the policies hold", func() bool {
			return byPolicy(write{object: object, patch: `{"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}}}`}.try(t.Context(), c, client.DryRunAll))
		})
	}
	s.comes("the policy of pods holds", func() bool { return byPolicy(c.Delete(t.Context(), pooler.DeepCopy(), client.DryRunAll)) })
	for what, do := range map[string]func() error{
		"the policy of Services":           func() error { return c.Create(t.Context(), routed(w.foreign), client.DryRunAll) },
		"the policy of Backups":            func() error { return c.Create(t.Context(), aged("payments", unlabelled), client.DryRunAll) },
		"the policy of Backups by Cluster": func() error { return c.Create(t.Context(), aged("plain", nil), client.DryRunAll) },
		"the policy of Poolers by Cluster": func() error {
			return write{object: pool("removed", "removed", 2, ""), patch: toZero}.try(t.Context(), c, client.DryRunAll)
		},
		"the policy of pods by Cluster": func() error { return c.Delete(t.Context(), w.unlisted.DeepCopy(), client.DryRunAll) },
		"the policy of rights by Cluster": func() error {
			return c.Create(t.Context(), fleet.Role(w.plain, cnpgv1.SchemeGroupVersion), client.DryRunAll)
		},
	} {
		s.comes(what+" holds", func() bool { return byPolicy(do()) })
	}
	// The API server has seen what the plugin's own writes are judged by.
	for _, object := range []client.Object{routed(w.rw), routed(w.inherited), fleet.Role(w.payments, cnpgv1.SchemeGroupVersion), aged("payments", nil)} {
		s.comes("the plugin may write", func() bool {
			return c.Create(t.Context(), object.DeepCopyObject().(client.Object), client.DryRunAll) == nil
		})
	}
	return s, c, w
}

func TestPluginPolicies(t *testing.T) {
	t.Parallel()
	s, c, w := plugin(t)
	t.Run("forbidden writes", func(t *testing.T) { s.refusesThePlugin(t, c, w) })
	t.Run("the certificates' account", func(t *testing.T) { s.limitsTheCertificates(t) })
	t.Run("the plugin's own writes", func(t *testing.T) { s.takesThePluginsWrites(t, c, w) })
	t.Run("other accounts", func(t *testing.T) {
		slice, _, _, config := theirs()
		manager := s.as(func(c *rest.Config) {
			c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:cnpg-system:cnpg-manager"}
		})
		// What the policies ask Clusters and Services of is written by others where there are none.
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "empty"}})
		alone, theirSlice := labelled("gone", "instance"), slice.DeepCopy()
		alone.Namespace, theirSlice.Namespace = "empty", "empty"
		s.create(alone, theirSlice)
		for _, who := range []client.Client{s.admin, manager} {
			if err := who.Delete(t.Context(), alone, client.DryRunAll); err != nil {
				t.Errorf("an instance in a namespace without Clusters: %v", err)
			}
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

func forbiddenToThePlugin(w *world) []attempt {
	makes := func(object client.Object, change func()) func(context.Context, client.Client) error {
		change()
		return func(ctx context.Context, c client.Client) error { return c.Create(ctx, object, client.DryRunAll) }
	}
	deletes := func(object client.Object) func(context.Context, client.Client) error {
		return func(ctx context.Context, c client.Client) error { return c.Delete(ctx, object, client.DryRunAll) }
	}
	orders, payments := cluster("shop", "orders", ""), w.payments
	slice, role, binding, config := theirs()
	unowned, foreign, privileged, many, impostor := routed(w.rw), routed(w.rw), routed(w.rw), routed(w.rw), routed(w.rw)
	hijack, taken, invented := routed(w.api), routed(w.foreign), fleet.Role(w.payments, cnpgv1.SchemeGroupVersion)
	given, handed := fleet.RoleBinding(w.payments, cnpgv1.SchemeGroupVersion), fleet.RoleBinding(orders, cnpgv1.SchemeGroupVersion)
	everyPod, otherPod, status := fleet.Role(payments, cnpgv1.SchemeGroupVersion), fleet.Role(payments, cnpgv1.SchemeGroupVersion), fleet.Role(payments, cnpgv1.SchemeGroupVersion)
	last := len(everyPod.Rules) - 1
	wide, other, misnamed := fleet.Role(payments, cnpgv1.SchemeGroupVersion), fleet.Role(payments, cnpgv1.SchemeGroupVersion), fleet.Role(payments, cnpgv1.SchemeGroupVersion)
	strong, elsewhere := fleet.RoleBinding(payments, cnpgv1.SchemeGroupVersion), fleet.RoleBinding(payments, cnpgv1.SchemeGroupVersion)
	rows := []attempt{
		{"a slice of another controller", makes(foreign, func() { foreign.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io" })},
		{"a slice that no Service owns", makes(unowned, func() { unowned.OwnerReferences = nil })},
		{"a slice of a privileged port", makes(privileged, func() { privileged.Ports[0].Port = ptr.To(int32(443)) })},
		{"a slice of many addresses", makes(many, func() { many.Endpoints = append(many.Endpoints, many.Endpoints[0]) })},
		{"a slice of a person's Service of another UID", makes(impostor, func() { impostor.OwnerReferences[0].UID = "uid" })},
		{"a slice of a person's Service of another cluster", makes(taken, func() { taken.Name = "taken" })},
		{"a slice of a Service that selects no instance", makes(hijack, func() { hijack.Ports = unowned.Ports })},
		{"an instance of a Cluster that does not list the plugin away", deletes(w.unlisted)},
		{"a pod's resources", func(ctx context.Context, c client.Client) error {
			patch := client.RawPatch(types.StrategicMergePatchType, []byte(resized("postgres", `{"requests":{"cpu":"10m"}}`)))
			return c.SubResource("resize").Patch(ctx, w.pod.DeepCopy(), patch, client.DryRunAll)
		}},
		{"an instance's resources", func(ctx context.Context, c client.Client) error {
			return resize(ctx, c, "orders-2", resized("postgres", `{"requests":{"cpu":"10m"}}`))
		}},
		{"a Role for a Cluster that does not list the plugin", makes(fleet.Role(w.plain, cnpgv1.SchemeGroupVersion), func() {})},
		{"a Role of an owner with an invented UID", makes(invented, func() { invented.OwnerReferences[0].UID = "uid" })},
		{"a RoleBinding of an account that is not the Cluster's", makes(given, func() { given.Subjects[0].Name = "default" })},
		{"a RoleBinding given to another account", func(ctx context.Context, c client.Client) error {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"subjects":[{"kind":"ServiceAccount","namespace":"shop","name":"default"}]}`))
			return c.Patch(ctx, handed.DeepCopy(), patch, client.DryRunAll)
		}},
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
		"since when it sleeps, awake":     `{"metadata":{"annotations":{"xata.io/scale-to-zero-asleep-since":"x"}}}`,
		"that it was not started":         `{"metadata":{"annotations":{"xata.io/scale-to-zero-restart-failed":"x"}}}`,
		"how long it is idle":             `{"metadata":{"annotations":{"xata.io/scale-to-zero-doze-minutes":"1"}}}`,
		"somebody's annotation away":      `{"metadata":{"annotations":{"example.org/note":null}}}`,
		"one of its keys and an image":    `{"metadata":{"annotations":{"xata.io/scale-to-zero-last-wake":"x"}},"spec":{"imageName":"example.org/evil:17"}}`,
		"an owner of the plugin's liking": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`,
	})...)
	rows = append(rows, tries(w.plain, map[string]string{
		"hibernation away of a Cluster that does not list the plugin": `{"metadata":{"annotations":{"cnpg.io/hibernation":null}}}`,
		"the sleep of a Cluster that does not list the plugin":        `{"metadata":{"annotations":{"xata.io/scale-to-zero-asleep-since":"x"}}}`,
		"a request to wake a Cluster that does not list the plugin":   `{"metadata":{"annotations":{"xata.io/scale-to-zero-wake-requested":"2026-03-01T00:00:00Z"}}}`,
		"a fence away of a Cluster that does not list the plugin":     `{"metadata":{"annotations":{"cnpg.io/fencedInstances":null}}}`,
	})...)
	rows = append(rows, tries(fenced(), map[string]string{
		"a person's fence away":    `{"metadata":{"annotations":{"cnpg.io/fencedInstances":null}}}`,
		"a person's fence widened": `{"metadata":{"annotations":{"cnpg.io/fencedInstances":"[\"*\"]"}}}`,
	})...)
	for rule, backup := range map[string]*cnpgv1.Backup{
		"a Backup of a Cluster that says nothing of its age":  aged("orders", nil),
		"a Backup of a Cluster that does not list the plugin": aged("plain", nil),
		"a Backup that is not labelled":                       aged("payments", unlabelled),
		"a Backup with the label of another Cluster":          aged("payments", func(b *cnpgv1.Backup) { b.Labels[endpointslice.LabelCluster] = "orders" }),
		"a Backup of another Cluster than its name says":      aged("payments", func(b *cnpgv1.Backup) { b.Name = "orders-1" }),
		"a Backup that goes with a ConfigMap": aged("payments", func(b *cnpgv1.Backup) {
			b.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "b"}}
		}),
	} {
		rows = append(rows, attempt{rule, func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, backup.DeepCopy(), client.DryRunAll)
		}})
	}
	rows = append(rows, tries(nightly("orders"), map[string]string{
		"a suspension":                   `{"spec":{"suspend":true}}`,
		"a schedule":                     `{"spec":{"schedule":"0 0 0 1 1 *"}}`,
		"the mark of a schedule":         `{"metadata":{"annotations":{"xata.io/scale-to-zero-suspended":"x"}}}`,
		"a label of a ScheduledBackup":   `{"metadata":{"labels":{"a":"b"}}}`,
		"an annotation of a schedule":    `{"metadata":{"annotations":{"example.org/note":null}}}`,
		"a finalizer of ScheduledBackup": `{"metadata":{"finalizers":["example.org/evil"]}}`,
	})...)
	for rule, of := range map[string]string{
		"a Pooler to zero of a Cluster that does not list the plugin": "removed",
		"a Pooler to zero of a Cluster whose Poolers do not sleep":    "none",
		"a Pooler to zero of a Cluster that is awake":                 "running",
	} {
		rows = append(rows, tries(pool(of, of, 2, ""), map[string]string{rule: toZero})...)
	}
	rows = append(rows, tries(pool("by-annotation", "by-annotation", 2, ""), map[string]string{
		"a Pooler to zero without a mark":         `{"spec":{"instances":0}}`,
		"a Pooler to zero with another number":    `{"metadata":{"annotations":{"xata.io/scale-to-zero-instances":"3"}},"spec":{"instances":0}}`,
		"the mark of a Pooler that has instances": `{"metadata":{"annotations":{"xata.io/scale-to-zero-instances":"2"}}}`,
		"a Pooler of more instances":              `{"spec":{"instances":3}}`,
		"a Pooler's mode":                         `{"spec":{"pgbouncer":{"poolMode":"transaction"}}}`,
		"a Pooler's label":                        `{"metadata":{"labels":{"a":"b"}}}`,
		"a Pooler's annotation":                   `{"metadata":{"annotations":{"example.org/note":"x"}}}`,
	})...)
	rows = append(rows, tries(pool("removed", "asleep", 0, "3"), map[string]string{
		"the mark of a Pooler changed":           `{"metadata":{"annotations":{"xata.io/scale-to-zero-instances":"2"}}}`,
		"a Pooler up with its mark":              `{"spec":{"instances":3}}`,
		"a Pooler up to more than its mark says": upTo(4),
		"a Pooler up to less than its mark says": upTo(1),
	})...)
	rows = append(rows, tries(pool("removed", "malformed", 0, "3000000000"), map[string]string{"a Pooler with a malformed mark up to two": upTo(2)})...)
	rows = append(rows, tries(slice, map[string]string{
		"where a Service's own slice leads": `{"endpoints":[{"addresses":["10.9.9.9"]}]}`,
		"a Service's own slice taken over":  `{"metadata":{"labels":{"scale-to-zero.cnpg-i.io/replica":"x","endpointslice.kubernetes.io/managed-by":"scale-to-zero.cnpg-i.io"}}}`,
	})...)
	rows = append(rows, tries(role, map[string]string{"somebody's Role": `{"rules":[]}`})...)
	rows = append(rows, tries(binding, map[string]string{"somebody's RoleBinding": `{"subjects":[]}`})...)
	return append(rows, tries(config, map[string]string{"the operator's ConfigMap": `{"data":{"a":"evil"}}`})...)
}

func (s *server) refusesThePlugin(t *testing.T, c client.Client, w *world) {
	for _, row := range forbiddenToThePlugin(w) {
		if err := row.do(t.Context(), c); !byPolicy(err) {
			t.Errorf("%s: %v", row.rule, err)
		}
		if err := row.do(t.Context(), s.admin); err != nil {
			t.Errorf("%s: refused to a person: %v", row.rule, err)
		}
	}
}

// limitsTheCertificates has the certificates' account write its two Secrets, and no others.
func (s *server) limitsTheCertificates(t *testing.T) {
	const name = "cnpg-scale-to-zero-certificates"
	s.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "cnpg-system", Name: name}},
	})
	account := s.as(func(c *rest.Config) {
		c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:cnpg-system:" + name}
	})
	secret := func(name string, kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Type: kind,
			Data: map[string][]byte{corev1.TLSCertKey: nil, corev1.TLSPrivateKeyKey: nil},
		}
	}
	for _, own := range []string{"scaletozero-server-tls", "scaletozero-client-tls"} {
		s.comes("it may write "+own, func() bool {
			return account.Create(t.Context(), secret(own, corev1.SecretTypeTLS), client.DryRunAll) == nil
		})
	}
	s.comes("the policy of the certificates holds", func() bool {
		return byPolicy(account.Create(t.Context(), secret("unknown", corev1.SecretTypeTLS), client.DryRunAll))
	})
	for rule, foreign := range map[string]*corev1.Secret{
		"another name": secret("registry", corev1.SecretTypeTLS), "another type": secret("scaletozero-server-tls", corev1.SecretTypeOpaque),
	} {
		if err := account.Create(t.Context(), foreign.DeepCopy(), client.DryRunAll); !byPolicy(err) {
			t.Errorf("%s: %v", rule, err)
		}
		if err := s.admin.Create(t.Context(), foreign, client.DryRunAll); err != nil {
			t.Errorf("%s: refused to a person: %v", rule, err)
		}
	}
}

// takesThePluginsWrites has the plugin's account do what the plugin does, by its own builders.
func (s *server) takesThePluginsWrites(t *testing.T, c client.Client, w *world) {
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
	scale := func(name, patch string) func() error {
		return func() error { return write{object: pool("", name, 0, ""), patch: patch}.try(ctx, c) }
	}
	announced, named, request := "uid 2026-03-01T00:00:30Z", "mine: it is an ExternalName", "2026-03-01T00:01:00Z"
	person(orders(), `{"metadata":{"annotations":{"xata.io/scale-to-zero-announced":"`+announced+`"}}}`)
	slice := routed(w.rw)
	role, binding := fleet.Role(orders(), cnpgv1.SchemeGroupVersion), fleet.RoleBinding(orders(), cnpgv1.SchemeGroupVersion)
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
			role.Rules = fleet.Role(dozing, cnpgv1.SchemeGroupVersion).Rules
			return c.Update(ctx, role)
		}},
		{"delete its RoleBinding", func() error { return c.Delete(ctx, binding.DeepCopy()) }},
		{"make its RoleBinding", func() error { return c.Create(ctx, binding) }},
		{"update its RoleBinding", func() error { return c.Update(ctx, binding) }},
		{"make the ConfigMap of its ports", func() error { return c.Create(ctx, config) }},
		{"update the ConfigMap of its ports", func() error { config.Data = map[string]string{"10000": "x"}; return c.Update(ctx, config) }},
		{"make a slice", func() error { return c.Create(ctx, slice) }},
		{"make one of a Service with the operator's label, which no policy looks at", func() error { return c.Create(ctx, routed(w.managed)) }},
		{"make one of a Service that selects by inherited labels", func() error { return c.Create(ctx, routed(w.inherited)) }},
		{"mend a slice", func() error {
			delete(slice.Labels, discoveryv1.LabelManagedBy)
			s.must(s.admin.Update(ctx, slice))
			slice.Labels[discoveryv1.LabelManagedBy] = endpointslice.ManagedBy
			return c.Update(ctx, slice)
		}},
		{"make a Backup", func() error { return c.Create(ctx, aged("payments", nil)) }},
		// The API server's informer of the policy's parameters has known this Cluster since before the policies.
		{"make one by a Namespace's default", func() error { return c.Create(ctx, aged("by-default", nil)) }},
		{"make one of a Pooler's Service", func() error { return c.Create(ctx, routed(w.pooled)) }},
		{"scale a Pooler to zero", scale("by-annotation", toZero)},
		{"and back", scale("by-annotation", upTo(2))},
		{"scale one to zero by a Namespace's default", scale("by-default", toZero)},
		{"scale it back to a number with a sign and zeros", func() error {
			person(pool("by-default", "by-default", 0, ""), `{"metadata":{"annotations":{"xata.io/scale-to-zero-instances":"+007"}}}`)
			return scale("by-default", upTo(7))()
		}},
		{"scale one up of a Cluster that has been taken from it", scale("asleep", upTo(3))},
		{"scale one with a malformed mark up to one", scale("malformed", upTo(1))},
		{"acknowledge", annotate(map[string]*string{contract.AnnotationGatewayReady: &announced})},
		{"name a Service", annotate(map[string]*string{contract.AnnotationUnroutableServices: &named})},
		{"name it no longer", annotate(map[string]*string{contract.AnnotationUnroutableServices: nil})},
		{"copy its Namespace's defaults", annotate(map[string]*string{contract.AnnotationDefaults: &named})},
		{"remove them", annotate(map[string]*string{contract.AnnotationDefaults: nil})},
		{"hand on a request to wake", annotate(map[string]*string{contract.AnnotationWakeRequested: &request})},
		{"take over the hibernation by another tool", func() error {
			person(orders(), `{"metadata":{"annotations":{"cnpg.io/hibernation":"on"}}}`)
			return annotate(map[string]*string{contract.AnnotationAsleepSince: &named, contract.AnnotationAsleepReason: &named})()
		}},
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
		{"wake a Cluster that has been taken from it while it dozes", func() error {
			plain := w.plain.DeepCopy()
			person(plain, `{"metadata":{"annotations":{"xata.io/scale-to-zero-dozing-since":"x"}}}`) // it is what is there then
			return waker.Annotate(ctx, c, plain, map[string]*string{contract.AnnotationFencedInstances: nil, contract.AnnotationDozingSince: nil})
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

// BenchmarkPluginPolicies_amongServices creates an EndpointSlice in a namespace with more and more Services, the operator's
// and others.
func BenchmarkPluginPolicies_amongServices(b *testing.B) {
	s, c, w := plugin(b)
	slice, count := routed(w.rw), 0
	more := func(services int, whose string, labels map[string]string) {
		for range services {
			count++
			service := serving("shop", fmt.Sprintf("other-%d", count), contract.PostgresPort, map[string]string{"cnpg.io/cluster": "other"})
			service.Labels = labels
			s.create(service)
		}
		b.Run(fmt.Sprintf("%d_of_%s", services, whose), func(b *testing.B) {
			for b.Loop() {
				s.must(c.Create(b.Context(), slice.DeepCopy(), client.DryRunAll))
			}
		})
	}
	more(0, "others", nil)
	more(120, "the_operator", byTheOperator)
	more(120, "others", nil)
}
