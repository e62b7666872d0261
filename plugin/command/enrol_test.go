package command

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/internal/apiservertest"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// archiver is a plugin whose entry must survive.
var archiver = cnpgv1.PluginConfiguration{Name: "barman-cloud.cloudnative-pg.io", IsWALArchiver: ptr.To(true), Parameters: map[string]string{"barmanObjectName": "store"}}

// between lists the plugin between two others.
func between(c *cnpgv1.Cluster) {
	c.Spec.Plugins = []cnpgv1.PluginConfiguration{archiver, {Name: contract.PluginName}, {Name: "last.example.org"}}
}

// plugins returns the names of the plugins that the cluster lists.
func (w *world) plugins(namespace, name string) string {
	var c cnpgv1.Cluster
	if err := w.api.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: name}, &c); err != nil {
		w.t.Error(err)
	}
	var names []string
	for _, plugin := range c.Spec.Plugins {
		names = append(names, plugin.Name)
	}
	return strings.Join(names, " ")
}

func TestDetach_removesOurEntryOnly(t *testing.T) {
	t.Parallel()
	const others = "barman-cloud.cloudnative-pg.io last.example.org"
	for name, row := range map[string]struct {
		change    func(*cnpgv1.Cluster)
		prepare   func(*world)
		arguments string
		left      string
	}{
		"awake":    {between, nil, "orders", others},
		"dry-run":  {between, nil, "orders --dry-run", "barman-cloud.cloudnative-pg.io cnpg-i-scale-to-zero.xata.io last.example.org"},
		"json":     {between, nil, "orders -o json", others},
		"asleep":   {func(c *cnpgv1.Cluster) { between(c); asleep(c) }, nil, "orders", others},
		"dozing":   {func(c *cnpgv1.Cluster) { between(c); dozing(c) }, nil, "orders", others},
		"disabled": {func(c *cnpgv1.Cluster) { between(c); c.Spec.Plugins[1].Enabled = ptr.To(false) }, nil, "orders", others},
		"the-list-changes-meanwhile": {between, func(w *world) {
			done := false
			w.looked = func(w *world, _ *cnpgv1.Cluster) {
				if done {
					return
				}
				done = true
				w.change("orders", func(c *cnpgv1.Cluster) { c.Spec.Plugins = c.Spec.Plugins[1:] })
			}
		}, "orders", "last.example.org"},
		"conflicts":          {between, func(w *world) { w.conflicts = 2 }, "orders", others},
		"conflicts-for-ever": {between, func(w *world) { w.conflicts = 100 }, "orders", "barman-cloud.cloudnative-pg.io cnpg-i-scale-to-zero.xata.io last.example.org"},
		"not-listed":         {func(c *cnpgv1.Cluster) { c.Spec.Plugins = []cnpgv1.PluginConfiguration{archiver} }, nil, "orders", archiver.Name},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := newWorld(t, cluster("orders", row.change), withdrawing(pod("orders", "orders-1", time.Hour, true)))
				w.managers[types.NamespacedName{Namespace: "shop", Name: "orders"}] = contract.FieldManager
				if row.prepare != nil {
					row.prepare(w)
				}
				golden(t, "detach-"+name+".txt",
					w.run(t.Context(), append([]string{"detach"}, strings.Fields(row.arguments)...)...))
				if got := w.plugins("shop", "orders"); got != row.left {
					t.Errorf("the plugins are %q, want %q", got, row.left)
				}
			})
		})
	}
}

func TestDetach_selectsWhatItIsToldTo(t *testing.T) {
	t.Parallel()
	in := func(namespace, name, team string, changes ...func(*cnpgv1.Cluster)) *cnpgv1.Cluster {
		c := cluster(name, changes...)
		c.Namespace, c.Labels = namespace, map[string]string{"team": team}
		return c
	}
	all := []string{"other/black", "other/blue", "shop/grey", "shop/red", "shop/rose"}
	for _, row := range []struct {
		rule      string
		arguments []string
		want      []string // is left
	}{
		{"one cluster by its name", []string{"red"}, []string{"other/black", "other/blue", "shop/grey", "shop/rose"}},
		{"by a label, of the namespace", []string{"-l", "team=a"}, []string{"other/black", "other/blue", "shop/grey"}},
		{"by a label, of all namespaces", []string{"-A", "-l", "team=a"}, []string{"other/black", "shop/grey"}},
		{"all of all namespaces", []string{"-A"}, nil},
		{"all of all namespaces, without a change", []string{"-A", "--dry-run"}, all},
		{"no cluster by a label that none has", []string{"-l", "team=z"}, all},
		{"none without a choice", nil, all},
		{"none by an empty label selector", []string{"-A", "-l", ""}, all},
		{"none by an invalid label selector", []string{"-l", "=a"}, all},
		{"none by a name and a selector", []string{"red", "-l", "team=a"}, all},
		{"none by a name in all namespaces", []string{"red", "-A"}, all},
		{"none by two names", []string{"red", "grey"}, all},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := newWorld(t, in("shop", "red", "a"), in("shop", "rose", "a"), in("shop", "grey", "b"), in("other", "blue", "a"), in("other", "black", "b"),
					in("shop", "unlisted", "a", func(c *cnpgv1.Cluster) { c.Spec.Plugins = []cnpgv1.PluginConfiguration{archiver} }))
				text := w.run(t.Context(), append([]string{"detach"}, row.arguments...)...)
				var left []string
				for _, name := range all {
					if namespace, cluster, _ := strings.Cut(name, "/"); w.plugins(namespace, cluster) != "" {
						left = append(left, name)
					}
				}
				if diff := cmp.Diff(row.want, left); diff != "" {
					t.Errorf("the plugin is left in (-want +got):\n%s\n%s", diff, text)
				}
				if w.plugins("shop", "unlisted") != archiver.Name {
					t.Error("a cluster that does not list the plugin was changed")
				}
			})
		})
	}
}

func TestDetach_detachesTheOthersWhenOneFails(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("blue"), cluster("orders"), cluster("red"),
			withdrawing(pod("red", "red-1", time.Hour, true)))
		w.conflicts = 5 // as many as there are attempts
		golden(t, "detach-one-fails.txt", w.run(t.Context(), "detach", "-A"))
		if got := w.plugins("shop", "blue") + w.plugins("shop", "orders") + w.plugins("shop", "red"); got != contract.PluginName {
			t.Errorf("the plugin is left in %q", got)
		}
	})
}

// detaching is what detach does.
var detaching = enrolments[slices.IndexFunc(enrolments, func(e enrolment) bool { return e.unlists })]

// unlisted lists another plugin only, and its pod has no sidecar.
func unlisted(c *cnpgv1.Cluster) { c.Spec.Plugins = []cnpgv1.PluginConfiguration{archiver} }

func TestEnrolment(t *testing.T) {
	t.Parallel()
	const ours = contract.PluginName
	off := func(c *cnpgv1.Cluster) { between(c); c.Spec.Plugins[1].Enabled = ptr.To(false) }
	for name, row := range map[string]struct {
		change    func(*cnpgv1.Cluster)
		arguments string
		enabled   string
		plugins   string
	}{
		"enable":         {unlisted, "enable orders", "true", archiver.Name + " " + ours},
		"enable-none":    {func(c *cnpgv1.Cluster) { c.Spec.Plugins, c.Annotations = nil, nil }, "enable orders", "true", ours},
		"enable-off":     {off, "enable orders", "true", archiver.Name + " " + ours + " last.example.org"},
		"enable-again":   {between, "enable orders", "true", archiver.Name + " " + ours + " last.example.org"},
		"enable-dry-run": {unlisted, "enable orders --dry-run", "true", archiver.Name},
		"enable-json":    {unlisted, "enable orders -o json", "true", archiver.Name + " " + ours},
		"observe":        {unlisted, "observe orders", "observe", archiver.Name + " " + ours},
		"observe-listed": {between, "observe orders", "observe", archiver.Name + " " + ours + " last.example.org"},
		"disable":        {between, "disable orders", "false", archiver.Name + " " + ours + " last.example.org"},
		"disable-not":    {unlisted, "disable orders", "true", archiver.Name},
		"observe-asleep": {asleep, "observe orders", "observe", ours},
		"disable-asleep": {asleep, "disable orders", "false", ours},
		"observe-all":    {between, "observe -A", "true", archiver.Name + " " + ours + " last.example.org"},
		"detach-twice": {func(c *cnpgv1.Cluster) {
			between(c)
			c.Spec.Plugins = append(c.Spec.Plugins, cnpgv1.PluginConfiguration{Name: ours})
		}, "detach orders", "true", archiver.Name + " last.example.org"},
		"enable-at-once":  {unlisted, "enable -A --at-a-time 0", "true", archiver.Name + " " + ours},
		"enable-negative": {unlisted, "enable -A --at-a-time -1", "true", archiver.Name},
		"disable-at-once": {between, "disable -A --at-a-time 2", "true", archiver.Name + " " + ours + " last.example.org"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				w := newWorld(t, cluster("orders", row.change), pod("orders", "orders-1", time.Hour, true))
				golden(t, "enrol-"+name+".txt", w.run(t.Context(), strings.Fields(row.arguments)...))
				var c cnpgv1.Cluster
				if err := w.api.Get(t.Context(), types.NamespacedName{Namespace: "shop", Name: "orders"}, &c); err != nil {
					t.Fatal(err)
				}
				got := c.Annotations[contract.AnnotationEnabled]
				if plugins := w.plugins("shop", "orders"); got != row.enabled || plugins != row.plugins {
					t.Errorf("enabled is %q and the plugins %q, want %q and %q", got, plugins, row.enabled, row.plugins)
				}
			})
		})
	}
}

// An interrupt does not hide what failed before it.
func TestEnrolment_saysWhatFailedBeforeTheInterrupt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("blue", unlisted), cluster("orders", unlisted))
		w.conflicts = 5 // as many as there are attempts
		looks := 0
		w.looked = func(w *world, _ *cnpgv1.Cluster) {
			if looks++; looks == 5 { // the last attempt for the first cluster
				w.lost, w.lostBy = 1000, context.Canceled
			}
		}
		got := w.run(t.Context(), "enable", "-A", "--at-a-time", "0")
		if !strings.Contains(got, `"blue"`) || !strings.Contains(got, errInterrupted.Error()) {
			t.Error(got)
		}
	})
}

// A cluster is begun when the instances of the one before have been restarted, and not at all if they are not.
func TestEnrolment_restartsOneClusterAfterTheOther(t *testing.T) {
	t.Parallel()
	for name, restarts := range map[string]bool{"one-by-one": true, "too-long": false, "repeated": false, "asleep-meanwhile": true, "interrupted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				begun := unlisted
				if name == "repeated" { // by an earlier run, and its pod has not been made anew yet
					begun = between
				}
				w := newWorld(t, cluster("blue", begun), pod("blue", "blue-1", time.Hour, true),
					cluster("orders", unlisted), pod("orders", "orders-1", time.Hour, true))
				looks := 0
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				w.looked = func(w *world, c *cnpgv1.Cluster) {
					if c.Name != "blue" {
						return
					}
					if w.plugins("shop", "orders") != archiver.Name {
						t.Error("the second cluster is begun before the first one has been restarted")
					}
					looks++
					switch {
					case looks == 5 && name == "asleep-meanwhile":
						w.change("blue", asleep)
						return
					case looks == 5 && name == "interrupted":
						interrupt()
					}
					if looks == 5 && restarts {
						fresh := withdrawing(pod("blue", "blue-1", 0, true))
						if err := w.api.Delete(t.Context(), fresh); err != nil {
							t.Error(err)
						}
						fresh.ResourceVersion = ""
						if err := w.api.Create(t.Context(), fresh); err != nil {
							t.Error(err)
						}
					}
				}
				golden(t, "enrol-"+name+".txt", w.run(ctx, "enable", "-A", "--timeout", "5m"))
				want := archiver.Name
				if restarts {
					want += " " + contract.PluginName
				}
				if got := w.plugins("shop", "orders"); got != want {
					t.Errorf("the plugins of the second cluster are %q, want %q", got, want)
				}
			})
		})
	}
}

// A cluster that was detached while it slept can still be woken.
func TestWake_wakesAClusterThatDoesNotListThePlugin(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		w := newWorld(t, cluster("orders", byHand, func(c *cnpgv1.Cluster) { c.Spec.Plugins = nil }))
		golden(t, "wake-not-listed.txt", w.run(t.Context(), "wake", "orders"))
		if _, on := w.annotations()[contract.AnnotationHibernation]; on {
			t.Error("hibernation is still on")
		}
	})
}

// The API server refuses the patch if the list of plugins was changed after it was read.
func TestDetach_onAnAPIServer(t *testing.T) {
	t.Parallel()
	a, err := newAccess(apiservertest.Start(t, "clusters"), cnpgv1.SchemeGroupVersion, metav1.NamespaceDefault)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster("orders", between)
	c.Namespace, c.Spec.StorageConfiguration.Size = metav1.NamespaceDefault, "1Gi"
	if err := a.client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKeyFromObject(c)
	if _, err := a.enrol(t.Context(), detaching, key, true); err != nil {
		t.Fatal(err)
	}
	if c, err := a.get(t.Context(), key); err != nil || entry(c) != 1 {
		t.Fatalf("a dry run has changed the cluster: %v, %v", c, err)
	}
	// The chart's notes have this patch for a cluster without a list of plugins.
	const listNone = `[{"op":"test","path":"/spec/plugins","value":null},{"op":"add","path":"/spec/plugins","value":[{"name":"x.example.org"}]}]`
	if err := a.client.Patch(t.Context(), c.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte(listNone)), client.DryRunAll); !apierrors.IsInvalid(err) {
		t.Errorf("the list of plugins was replaced: %v", err)
	}
	bare := cluster("bare", func(c *cnpgv1.Cluster) {
		c.Namespace, c.Spec.Plugins, c.Spec.StorageConfiguration.Size = metav1.NamespaceDefault, nil, "1Gi"
	})
	if err := a.client.Create(t.Context(), bare); err != nil {
		t.Fatal(err)
	}
	if err := a.client.Patch(t.Context(), bare, client.RawPatch(types.JSONPatchType, []byte(listNone))); err != nil ||
		len(bare.Spec.Plugins) != 1 {
		t.Errorf("the list of plugins is not made: %v", err)
	}
	reads := 0
	a.client = reading{a.client, func(read *cnpgv1.Cluster) {
		if reads++; reads == 1 { // after this read the list of plugins changes
			changed := read.DeepCopy()
			changed.Spec.Plugins = changed.Spec.Plugins[1:]
			if err := a.client.Update(t.Context(), changed); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := a.enrol(t.Context(), detaching, key, false); err != nil {
		t.Fatal(err)
	}
	left, err := a.get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(left.Spec.Plugins) != 1 || left.Spec.Plugins[0].Name != "last.example.org" || reads != 3 {
		t.Errorf("after %d reads the plugins are %v", reads, left.Spec.Plugins)
	}
}

// reading calls a function after each read of a Cluster.
type reading struct {
	client.Client
	read func(*cnpgv1.Cluster)
}

func (r reading) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	err := r.Client.Get(ctx, key, object, options...)
	if cluster, ok := object.(*cnpgv1.Cluster); ok && err == nil {
		r.read(cluster)
	}
	return err
}
