package policies

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
	"github.com/cnpg-i/scale-to-zero/plugin/fleet"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
)

// enrol makes a Cluster with its instances, accounts and rights: the operator's Role, and ours if it lists the plugin. The
// second instance is the primary.
func (s *server) enrol(c *cnpgv1.Cluster) {
	s.t.Helper()
	account := c.GetServiceAccountName()
	s.create(c)
	s.primary(c, 2)
	c.Status.CurrentPrimary = c.Name + "-2"
	operators := specs.CreateRole(specs.RoleOptions{Cluster: c})
	binding := specs.CreateRoleBinding(c.ObjectMeta, account)
	binding.Namespace = c.Namespace
	s.create(&operators, &binding)
	if plan.Lists(c) {
		s.create(fleet.Role(c, cnpgv1.SchemeGroupVersion), fleet.RoleBinding(c, cnpgv1.SchemeGroupVersion))
	}
	err := s.admin.Create(s.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: account}})
	s.must(client.IgnoreAlreadyExists(err)) // clusters may share one
	for number := 1; number <= 2; number++ {
		s.create(instance(c.Namespace, c.Name, number, account))
	}
	s.create(
		&cnpgv1.ScheduledBackup{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-nightly", Annotations: map[string]string{"example.org/note": "x"}},
			Spec:       cnpgv1.ScheduledBackupSpec{Schedule: "0 0 0 * * *", Cluster: cnpgv1.LocalObjectReference{Name: c.Name}},
		},
		&cnpgv1.Backup{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-old"},
			Spec:       cnpgv1.BackupSpec{Cluster: cnpgv1.LocalObjectReference{Name: c.Name}},
		},
		&cnpgv1.Database{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name + "-app"},
			Spec:       cnpgv1.DatabaseSpec{Name: "app", Owner: "app", ClusterRef: corev1.LocalObjectReference{Name: c.Name}},
		},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}},
	)
}

// primary has the operator say which instance is the primary.
func (s *server) primary(c *cnpgv1.Cluster, number int) {
	s.t.Helper()
	name := fmt.Sprintf("%s-%d", c.Name, number)
	status := fmt.Sprintf(`{"status":{"currentPrimary":%q,"targetPrimary":%q,"phase":"Cluster in healthy state"}}`, name, name)
	s.must(s.admin.Status().Patch(s.t.Context(), c.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(status))))
}

// token is what kubelet mounts into that pod.
func (s *server) token(pod string) string {
	s.t.Helper()
	var bound corev1.Pod
	s.must(s.admin.Get(s.t.Context(), types.NamespacedName{Namespace: "shop", Name: pod}, &bound))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: bound.Spec.ServiceAccountName}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](3600),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod, UID: bound.UID},
	}}
	s.must(s.admin.SubResource("token").Create(s.t.Context(), account, request))
	return request.Status.Token
}

// inside is a client with the token of that pod.
func (s *server) inside(pod string) client.Client {
	s.t.Helper()
	token := s.token(pod)
	return s.as(func(c *rest.Config) {
		c.CertData, c.KeyData, c.BearerToken = nil, nil, token
	})
}

// sidecar is the sidecar's own hold on the API server, in that pod.
func (s *server) sidecar(cluster, pod string) *kubernetes.Client {
	s.t.Helper()
	directory := s.t.TempDir()
	endpoint := kubernetes.Endpoint{URL: s.config.Host, CAFile: filepath.Join(directory, "ca.crt"), TokenFile: filepath.Join(directory, "token")}
	s.must(os.WriteFile(endpoint.CAFile, s.config.CAData, 0o600))
	s.must(os.WriteFile(endpoint.TokenFile, []byte(s.token(pod)), 0o600))
	c, err := kubernetes.Connect(endpoint, kubernetes.Identity{
		Namespace: "shop", Cluster: cluster, Pod: pod, PodUID: "uid", Group: "postgresql.cnpg.io", Version: "v1",
	}, slog.New(slog.DiscardHandler))
	s.must(err)
	return c
}

// settled is a server with clusters that list the plugin, one that does not, and some that share accounts.
func settled(t *testing.T) *server {
	t.Helper()
	s := begin(t, resources...)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "vault"}})
	for _, c := range []*cnpgv1.Cluster{
		cluster("shop", "orders", "", contract.PluginName), cluster("shop", "payments", "", contract.PluginName),
		cluster("shop", "ledger", "shared", contract.PluginName), cluster("shop", "ledger-b", "shared", contract.PluginName),
		cluster("shop", "ledger-2", "shared", "other.example.org", contract.PluginName),
		cluster("shop", "plain", "", "other.example.org"), cluster("vault", "orders", "", contract.PluginName),
	} {
		s.enrol(c)
	}
	for _, name := range []string{"napping", "napping-b"} {
		napping := cluster("shop", name, "napping", contract.PluginName)
		napping.Annotations[contract.AnnotationDozeMinutes] = "5"
		s.enrol(napping)
	}
	stray := instance("shop", "stray", 1, "orders")
	stray.Name = "stray"
	s.create(stray, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}})
	s.install("instances")
	primary := s.inside("orders-2")
	for _, w := range []write{
		{patch: `{"metadata":{"labels":{"team":"blue"}}}`, object: cluster("shop", "orders", "")},
		{patch: `{"metadata":{"labels":{"team":"blue"}}}`, object: nightly("orders")},
		{patch: `{"spec":{"suspend":true}}`, object: nightly("orders"), pod: "orders-1"},
	} {
		c := primary
		if w.pod != "" {
			c = s.inside(w.pod)
		}
		s.comes("the policies hold", func() bool { return byPolicy(w.try(t.Context(), c, client.DryRunAll)) })
	}
	napping := s.inside("napping-2")
	s.comes("the policy of pods holds", func() bool {
		return byPolicy(resize(t.Context(), napping, "napping-2", resized("scale-to-zero", `{"requests":{"cpu":"10m"}}`)))
	})
	return s
}

func TestInstancesPolicies(t *testing.T) {
	t.Parallel()
	s := settled(t)
	// Each part changes what the next one starts with.
	t.Run("forbidden writes", s.refusesForbidden)
	t.Run("other verbs", s.refusesOtherVerbs)
	t.Run("the sidecar's own writes", s.takesOwnWrites)
	t.Run("what the instance manager does", s.leavesTheInstanceManager)
	t.Run("resizes", s.limitsResizes)
	t.Run("another account with the rights", s.limitsWhomTheRoleBindingNames)
	t.Run("the primary moves", s.followsThePrimary)
	t.Run("rights of others and rights that stay", s.followsTheRights)
}

// A policy whose parameters are of a kind that comes later is out of order for half a minute, for everybody.
func TestPoliciesBeforeTheOperator(t *testing.T) {
	t.Parallel()
	s := begin(t)
	s.install("instances")
	apiservertest.Define(t, s.config, resources...)
	s.enrol(cluster("shop", "orders", "", contract.PluginName))
	for _, object := range []client.Object{cluster("shop", "orders", ""), nightly("orders")} {
		red, blue := write{object: object, patch: `{"metadata":{"labels":{"a":"red"}}}`}, write{object: object, patch: `{"metadata":{"labels":{"a":"blue"}}}`}
		inside := s.inside("orders-2")
		s.comes("an instance is limited", func() bool {
			err := red.try(t.Context(), inside, client.DryRunAll)
			return err != nil && strings.Contains(err.Error(), "labels")
		})
		if err := blue.try(t.Context(), s.admin); err != nil {
			t.Errorf("a person cannot write: %v", err)
		}
	}
}

func (s *server) refusesForbidden(t *testing.T) {
	others := s.others(t)
	inside := map[string]client.Client{}
	for _, w := range forbidden() {
		if inside[w.pod] == nil {
			inside[w.pod] = s.inside(w.pod)
		}
		err := w.try(t.Context(), inside[w.pod])
		switch {
		case err == nil:
			t.Errorf("%s: written", w.rule)
		case !strings.Contains(err.Error(), w.says) || byPolicy(err) == (w.says == byRole):
			t.Errorf("%s: refused, but not for the reason %q: %v", w.rule, w.says, err)
		}
		for who, c := range others {
			if err := w.try(t.Context(), c, client.DryRunAll); err != nil {
				t.Errorf("%s: refused to %s: %v", w.rule, who, err)
			}
		}
	}
}

// others are those whom the policies must leave alone: the operator, a person, the plugin, and an account of the same
// namespace, in a pod of its own, that has rights of its own.
func (s *server) others(t testing.TB) map[string]client.Client {
	t.Helper()
	found := map[string]client.Client{"a person": s.admin}
	for who, account := range map[string]string{
		"the operator": "cnpg-system:cnpg-manager", "the plugin": "cnpg-system:cnpg-scale-to-zero-plugin", "a deployer": "shop:deployer",
	} {
		namespace, name, _ := strings.Cut(account, ":")
		s.create(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		})
		c := s.as(func(c *rest.Config) {
			c.Impersonate = rest.ImpersonationConfig{
				UserName: "system:serviceaccount:" + account, Extra: map[string][]string{"authentication.kubernetes.io/pod-name": {name + "-1"}},
			}
		})
		s.comes(who+" has rights", func() bool {
			return write{object: nightly("orders"), patch: `{}`}.try(t.Context(), c, client.DryRunAll) == nil
		})
		found[who] = c
	}
	return found
}

func (s *server) refusesOtherVerbs(t *testing.T) {
	c := s.inside("orders-2")
	orders := func() *cnpgv1.Cluster {
		var living cnpgv1.Cluster
		s.must(s.admin.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &living))
		return &living
	}
	for _, row := range []struct {
		rule string
		do   func(context.Context) error
	}{
		{"delete its Cluster", func(ctx context.Context) error { return c.Delete(ctx, orders()) }},
		{"delete another Cluster", func(ctx context.Context) error { return c.Delete(ctx, cluster("shop", "payments", "")) }},
		{"replace its Cluster", func(ctx context.Context) error { return c.Update(ctx, orders()) }},
		{"make a Cluster", func(ctx context.Context) error { return c.Create(ctx, cluster("shop", "evil", "orders")) }},
		{"scale its Cluster", func(ctx context.Context) error {
			return c.SubResource("scale").Patch(ctx, orders(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":9}}`)))
		}},
		{"write a status of another Cluster", func(ctx context.Context) error {
			return c.Status().Patch(ctx, cluster("shop", "payments", ""), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"x"}}`)))
		}},
		{"delete its ScheduledBackup", func(ctx context.Context) error { return c.Delete(ctx, nightly("orders")) }},
		{"make a ScheduledBackup", func(ctx context.Context) error {
			return c.Create(ctx, &cnpgv1.ScheduledBackup{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "evil"},
				Spec:       cnpgv1.ScheduledBackupSpec{Schedule: "0 0 0 * * *", Cluster: cnpgv1.LocalObjectReference{Name: "orders"}},
			})
		}},
		{"read a foreign Secret", func(ctx context.Context) error {
			return c.Get(ctx, types.NamespacedName{Namespace: "shop", Name: "other"}, &corev1.Secret{})
		}},
		{"give itself rights", func(ctx context.Context) error {
			return c.Create(ctx, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "evil"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			})
		}},
		{"remove a policy's binding", func(ctx context.Context) error {
			return c.Delete(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders.scale-to-zero"}})
		}},
	} {
		if err := row.do(t.Context()); err == nil || !strings.Contains(err.Error(), "is forbidden: User") {
			t.Errorf("%s: %v", row.rule, err)
		}
	}
}

// resized is a resize of a container.
func resized(container, resources string) string {
	return fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"resources":%s}]}}`, container, resources)
}

func resize(ctx context.Context, c client.Client, name, patch string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	options := &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}}
	return c.SubResource("resize").Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), options)
}

// limitsResizes has pods of clusters that doze, and share an account, resize what they may and what not.
func (s *server) limitsResizes(t *testing.T) {
	own := s.inside("napping-2")
	for _, row := range []struct{ rule, pod, patch, says string }{
		{"the requests of a sidecar", "napping-2", resized("scale-to-zero", `{"requests":{"cpu":"10m"}}`), "nothing of their pod but the requests"},
		{"PostgreSQL's limits", "napping-2", resized("postgres", `{"limits":{"cpu":"2"}}`), "nothing of their pod but the requests"},
		{"requests and limits", "napping-2", resized("postgres", `{"requests":{"cpu":"10m"},"limits":{"memory":"2Gi"}}`), "nothing of their pod but the requests"},
		{"the pod of a cluster that shares the account", "napping-b-2", resized("postgres", `{"requests":{"cpu":"10m"}}`), "their own pod only"},
		{"another pod of the cluster", "napping-1", resized("postgres", `{"requests":{"cpu":"10m"}}`), byRole},
		{"the pod of a cluster that does not doze", "orders-2", resized("postgres", `{"requests":{"cpu":"10m"}}`), byRole},
	} {
		err := resize(t.Context(), own, row.pod, row.patch)
		if err == nil || !strings.Contains(err.Error(), row.says) || byPolicy(err) == (row.says == byRole) {
			t.Errorf("%s: %v", row.rule, err)
		}
		if err := resize(t.Context(), s.admin, row.pod, row.patch); err != nil {
			t.Errorf("%s: refused to a person: %v", row.rule, err)
		}
	}
	sidecar, ctx := s.sidecar("napping", "napping-2"), t.Context()
	for _, requests := range []map[string]resource.Quantity{
		{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("64Mi")},
		{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("512Mi")},
	} {
		living, err := sidecar.Pod(ctx)
		s.must(err)
		if err := sidecar.Resize(ctx, living, "postgres", requests); err != nil {
			t.Errorf("the sidecar cannot set %v: %v", requests, err)
		}
	}
}

// limitsWhomTheRoleBindingNames has an account that is not the Cluster's get its rights by a RoleBinding of the plugin.
func (s *server) limitsWhomTheRoleBindingNames(t *testing.T) {
	var orders cnpgv1.Cluster
	s.must(s.admin.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &orders))
	binding := fleet.RoleBinding(&orders, cnpgv1.SchemeGroupVersion)
	binding.Name, binding.Subjects[0].Name = "given", "default"
	s.create(binding)
	account := s.as(func(c *rest.Config) {
		c.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:shop:default"}
	})
	image := write{object: &orders, patch: `{"spec":{"imageName":"example.org/evil:17"}}`}
	s.comes("the account is limited", func() bool { return byPolicy(image.try(t.Context(), account, client.DryRunAll)) })
	if err := image.try(t.Context(), s.admin, client.DryRunAll); err != nil {
		t.Errorf("refused to a person: %v", err)
	}
	s.must(s.admin.Delete(t.Context(), binding))
}

// followsThePrimary fails the cluster over.
func (s *server) followsThePrimary(t *testing.T) {
	s.primary(cluster("shop", "orders", ""), 1)
	former, new := s.inside("orders-2"), s.inside("orders-1")
	announce := write{object: cluster("shop", "orders", ""), patch: `{"metadata":{"annotations":{"xata.io/scale-to-zero-announced":"x"}}}`}
	suspend := write{object: nightly("orders"), patch: `{"spec":{"suspend":true}}`}
	if err := announce.try(t.Context(), former); !byPolicy(err) {
		t.Errorf("the former primary announces: %v", err)
	}
	if err := announce.try(t.Context(), new); err != nil {
		t.Errorf("the new primary cannot announce: %v", err)
	}
	s.comes("the new primary may suspend", func() bool { return suspend.try(t.Context(), new) == nil })
	if err := suspend.try(t.Context(), former); !byPolicy(err) {
		t.Errorf("the former primary suspends: %v", err)
	}
	s.must(s.admin.Status().Patch(t.Context(), cluster("shop", "orders", ""), client.RawPatch(types.MergePatchType, []byte(`{"status":{"currentPrimary":null}}`))))
	for _, c := range []client.Client{former, new, s.unbound()} {
		if err := announce.try(t.Context(), c); !byPolicy(err) {
			t.Errorf("somebody announces for a cluster without a primary: %v", err)
		}
	}
	s.primary(cluster("shop", "orders", ""), 2)
}

// unbound is a client with a token of the account that belongs to no pod.
func (s *server) unbound() client.Client {
	s.t.Helper()
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	s.must(s.admin.SubResource("token").Create(s.t.Context(), account, request))
	return s.as(func(c *rest.Config) { c.CertData, c.KeyData, c.BearerToken = nil, nil, request.Status.Token })
}

// followsTheRights shows that the policies limit our rights for as long as they are there, and no rights of others.
func (s *server) followsTheRights(t *testing.T) {
	image := func(name string) write {
		return write{object: cluster("shop", name, ""), patch: `{"spec":{"imageName":"example.org/postgresql:17.6"}}`}
	}
	s.create(&rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "somebodys"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"postgresql.cnpg.io"}, Resources: []string{"clusters", "scheduledbackups"}, Verbs: []string{"patch"}}},
	}, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "somebodys"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "somebodys"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "shop", Name: "plain"}},
	})
	plain := s.inside("plain-1")
	s.comes("a cluster without the plugin keeps the rights that somebody gave it", func() bool { return image("plain").try(t.Context(), plain) == nil })
	for _, w := range []write{image("payments"), {object: nightly("plain"), patch: `{"spec":{"schedule":"0 0 0 1 1 *"}}`}, {object: nightly("orders"), patch: `{"spec":{"suspend":true}}`}} {
		if err := w.try(t.Context(), plain, client.DryRunAll); err != nil {
			t.Errorf("somebody's rights are limited: %v", err)
		}
	}

	s.must(s.admin.Patch(t.Context(), cluster("shop", "orders", ""), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"plugins":null}}`))))
	orders := s.inside("orders-2")
	if err := image("orders").try(t.Context(), orders); !byPolicy(err) {
		t.Errorf("a cluster that no longer lists the plugin and has kept the rights changes its image: %v", err)
	}
	s.must(s.admin.Patch(t.Context(), cluster("shop", "payments", ""), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	s.must(s.admin.Delete(t.Context(), cluster("shop", "payments", "")))
	suspend := write{object: nightly("orders"), patch: `{"spec":{"suspend":false}}`}
	own, replica := write{object: nightly("payments"), patch: suspend.patch}, s.inside("payments-1")
	s.comes("the policies know that the cluster has no primary any more", func() bool { return own.try(t.Context(), replica, client.DryRunAll) == nil })
	if err := suspend.try(t.Context(), s.inside("payments-2")); !byPolicy(err) {
		t.Errorf("the pods of a cluster that is gone change another's ScheduledBackup: %v", err)
	}
}
