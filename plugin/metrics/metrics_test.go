package metrics

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	lifecycleapi "github.com/cloudnative-pg/cnpg-i/pkg/lifecycle"
	"github.com/cnpg-i/scale-to-zero/internal/informerstest"
	"github.com/cnpg-i/scale-to-zero/plugin/cnpgi"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var update = flag.Bool("update", false, "write the golden files anew")

// noon is when the plugin started.
var noon = time.Date(2026, time.March, 2, 12, 0, 0, 0, time.UTC)

// cluster lists the plugin and has two instances that request half a core and 1 GiB each.
func cluster(name string, annotations map[string]string, conditions ...metav1.Condition) *cnpgv1.Cluster {
	c := &cnpgv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Annotations: annotations}}
	c.Spec.Instances = 2
	c.Spec.Plugins = []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}
	c.Spec.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
	}
	c.Status.Conditions = conditions
	return c
}

// asleep is the operator's condition once the last pod is gone.
func asleep(since time.Time) metav1.Condition {
	return metav1.Condition{Type: contract.AnnotationHibernation, Status: metav1.ConditionTrue, Reason: "Hibernated", LastTransitionTime: metav1.NewTime(since)}
}

// on returns annotations that turn the feature on, and more.
func on(more ...string) map[string]string {
	annotations := map[string]string{contract.AnnotationEnabled: "true"}
	for i := 0; i < len(more); i += 2 {
		annotations[more[i]] = more[i+1]
	}
	return annotations
}

// ours makes this project the owner of the hibernation annotation.
func ours(c *cnpgv1.Cluster) *cnpgv1.Cluster {
	c.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: contract.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "postgresql.cnpg.io/v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:cnpg.io/hibernation":{},"f:cnpg.io/fencedInstances":{}}}}`),
	}}
	return c
}

// wokenBy is the annotation of a wake at noon.
func wokenBy(client string) string {
	return `{"at":"2026-03-02T12:00:00Z","by":"` + client + `","user":"app","database":"shop","service":"orders-rw"}`
}

func schedule(name, of string, annotations map[string]string, suspend bool) *cnpgv1.ScheduledBackup {
	s := &cnpgv1.ScheduledBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations}}
	s.Spec.Cluster.Name, s.Spec.Suspend = of, ptr.To(suspend)
	return s
}

// world is a fleet whose clock the test sets.
type world struct {
	client.Client
	*Fleet
	now time.Time
	// wakes are the gateway's metrics; not registered unless a test does so.
	wakes *Wake
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := cnpgv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	w := &world{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithReturnManagedFields().Build(), now: noon}
	sidecars := cnpgi.Sidecars{Burstable: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
	}}}
	w.wakes = NewWake(prometheus.NewRegistry(), 20000, 5*time.Minute)
	w.Fleet = NewFleet(Sources{
		Informers: informerstest.Informers{Reader: w}, Sidecars: sidecars, Now: func() time.Time { return w.now },
		Instances: func(_ context.Context, of types.NamespacedName) ([]corev1.Pod, error) { return podsOf(of.Name) },
		Unrouted:  func(types.NamespacedName) int { return 1 }, Wakes: w.wakes,
		LastBackup: func(types.NamespacedName) time.Time { return noon.Add(-48 * time.Hour) },
	})
	return w
}

// podsOf returns the instances of a cluster: one is being updated, one is asleep, one cannot be read.
func podsOf(cluster string) ([]corev1.Pod, error) {
	pod := func(containers ...corev1.Container) corev1.Pod {
		return corev1.Pod{Spec: corev1.PodSpec{Containers: append([]corev1.Container{{Name: "postgres", Image: "postgresql:18"}}, containers...)}}
	}
	sidecar := func(tag string) corev1.Container {
		return corev1.Container{Name: "scale-to-zero", Image: "sidecar:" + tag}
	}
	switch cluster {
	case "awake":
		return []corev1.Pod{pod(sidecar("v1")), pod(sidecar("v2")), pod(sidecar("v2")), pod()}, nil
	case "mistaken":
		return nil, errors.New("the informer is not in sync")
	default:
		return nil, nil
	}
}

// page returns the page of a scrape.
func page(t *testing.T, gatherer prometheus.Gatherer) string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("the page is answered with %d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// TestThePageIsGolden shows every metric of the plugin for a fleet with clusters of every kind.
func TestThePageIsGolden(t *testing.T) {
	t.Parallel()
	byLimit := cluster("asleep-by-hand", on(contract.AnnotationHibernation, "on"), asleep(noon.Add(time.Minute)))
	byLimit.Spec.Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}}
	stranger := cluster("stranger", on())
	stranger.Spec.Plugins = nil
	blocked := cluster("blocked", on())
	blocked.Status.Phase = cnpgv1.PhaseFailurePlugin
	w := newWorld(t,
		cluster("awake", on(contract.AnnotationLastWake, wokenBy("10.0.0.9"))), cluster("disabled", nil), cluster("falling", on(contract.AnnotationHibernation, "on")),
		cluster("mistaken", map[string]string{contract.AnnotationEnabled: "yes"}), stranger, blocked, byLimit,
		ours(cluster("asleep", on(contract.AnnotationHibernation, "on", contract.AnnotationAsleepSince, "2026-03-02T11:59:58Z", contract.AnnotationBackupMaxAge, "7d"), asleep(noon.Add(-time.Hour)))),
		ours(cluster("dozing", on(contract.AnnotationFencedInstances, contract.FencedInstancesAll, contract.AnnotationDozingSince, "2026-03-02T12:01:30Z", contract.AnnotationWake, contract.WakeManual))),
		cluster("fenced", on(contract.AnnotationFencedInstances, contract.FencedInstancesAll)),
		schedule("nightly", "asleep", map[string]string{contract.AnnotationSuspended: "2026-03-02T11:00:00Z"}, true),
		schedule("weekly", "asleep", map[string]string{contract.AnnotationSuspended: "2026-03-02T11:00:00Z"}, true),
		schedule("a person's", "asleep", nil, true), schedule("resumed by hand", "awake", map[string]string{contract.AnnotationSuspended: "x"}, false),
	)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Fleet, NewCertificates(func() (map[string]time.Time, error) {
		return map[string]time.Time{"server": noon.Add(time.Hour), "client": noon}, nil
	}))
	injections := NewInjections(registry)
	injections.Injected("create", cnpgi.ResultInjected)
	RegisterBuildInfo(registry, "1.2.3")
	NewCalls(registry, lifecycleapi.OperatorLifecycle_ServiceDesc)
	wakes := NewWake(registry, 20000, 5*time.Minute)
	w.sources.Wakes = wakes
	wakes.Woke(types.NamespacedName{Namespace: "shop", Name: "awake"}, contract.CauseConnection, waker.DepthHibernation, waker.ResultSuccess, 2500*time.Millisecond)
	wakes.Took(gateway.Service{}, gateway.PhaseResolve, 2400*time.Millisecond)
	wakes.PortsUsed(3)
	w.now = noon.Add(2 * time.Minute)

	got := page(t, registry)
	const path = "testdata/plugin.metrics"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) != 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestSeriesGoWithTheirCluster(t *testing.T) {
	t.Parallel()
	gone := cluster("gone", on(contract.AnnotationHibernation, "on", contract.AnnotationLastWake, wokenBy("10.0.0.9")), asleep(noon))
	w := newWorld(t, gone, cluster("stays", on()))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Fleet)
	w.now = noon.Add(time.Hour)
	if got := page(t, registry); !strings.Contains(got, `hibernated_seconds_total{cluster="gone",namespace="shop"} 3600`) {
		t.Errorf("an hour of sleep is not shown:\n%s", got)
	}
	if got := wakes(t, registry); len(got) != 1 || !strings.Contains(got[0], `{cluster="gone",namespace="shop"} 1.7724528e+09`) {
		t.Errorf("its wake is shown as %q", got)
	}
	if err := w.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	got := page(t, registry)
	if strings.Contains(got, `cluster="gone"`) || !strings.Contains(got, `cluster="stays"`) || len(w.ledger.accounts) != 1 {
		t.Errorf("%d accounts, and the page:\n%s", len(w.ledger.accounts), got)
	}
	again := cluster("gone", on(contract.AnnotationHibernation, "on"), asleep(w.now))
	again.UID = "another"
	if err := w.Create(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Minute)
	if got := page(t, registry); !strings.Contains(got, `hibernated_seconds_total{cluster="gone",namespace="shop"} 60`) {
		t.Errorf("another cluster of the name has not begun anew:\n%s", got)
	}
}

func TestWhatCannotBeReadIsAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster("awake", on()))
	w.Client = fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build() // it has no Clusters
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Fleet)
	if got := page(t, registry); got != "" {
		t.Errorf("shown:\n%s", got)
	}
}

func TestWithoutAGatewayNobodyIsWokenByAConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster("awake", on()))
	w.sources.Instances, w.sources.Unrouted, w.sources.Wakes = nil, nil, nil
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(w.Fleet)
	got := page(t, registry)
	if !strings.Contains(got, `wakes_on_connect{cluster="awake",namespace="shop"} 0`) || strings.Contains(got, "instance_pods") {
		t.Errorf("shown:\n%s", got)
	}
}

// wakes returns the lines of a scrape that show when a cluster was woken.
func wakes(t *testing.T, gatherer prometheus.Gatherer) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(page(t, gatherer)) {
		if strings.HasPrefix(line, prefix+"last_wake_timestamp_seconds{") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// An address as a label would make a series of each client.
func TestLastWake_isThatOfAnyClient(t *testing.T) {
	t.Parallel()
	const at = ` 1.7724528e+09`
	for _, row := range []struct{ rule, value, want string }{
		{"a client's wake is shown", wokenBy("10.0.0.9"), `cluster="woken",namespace="shop"}` + at},
		{"one of IPv6 too", wokenBy("2001:db8::9"), `cluster="woken",namespace="shop"}` + at},
		{"that of a Backup is not", wokenBy("Backup nightly"), ""},
		{"nor what is no wake", "yesterday", ""},
		{"nor an empty value", "", ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(newWorld(t, cluster("woken", on(contract.AnnotationLastWake, row.value))).Fleet)
			want := ""
			if row.want != "" {
				want = prefix + "last_wake_timestamp_seconds{" + row.want
			}
			if got := strings.Join(wakes(t, registry), "\n"); got != want {
				t.Errorf("shown as %q, want %q", got, want)
			}
		})
	}
}
