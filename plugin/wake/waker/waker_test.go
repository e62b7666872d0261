package waker

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cnpg-i/scale-to-zero/internal/informerstest"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const namespace, name = "shop", "orders"

// world is a Kubernetes cluster with one Cluster, as the waker sees it.
type world struct {
	t        *testing.T
	api      client.Client
	notifier *Notifier
	recorder *record.FakeRecorder
	waker    *Waker

	mutex   sync.Mutex
	patches []string
	probes  int
	// passwordSet is when the instance manager sets the password of the application's user.
	passwordSet time.Time
	signals     []string // the clients signalled to instances, and to which
	results     []Result
	depths      []Depth
	queued      []int
	// queuedAt are the times of each change of queued, since the world was made.
	queuedAt []time.Duration
	began    time.Time

	manager  atomic.Value // the field manager that turned hibernation on, or fenced the cluster
	postgres atomic.Bool  // PostgreSQL accepts sessions
	bouncer  atomic.Bool  // PgBouncer accepts connections
	stale    atomic.Bool  // the API server has not answered for long
	conflict atomic.Int32 // how many patches conflict with another change
	// interfere makes that change; by default an irrelevant one.
	interfere func(*cnpgv1.Cluster)
	// made modifies the pod that the operator creates when hibernation is off.
	made func(*corev1.Pod)
}

func (w *world) Woke(_ types.NamespacedName, _ contract.Cause, from Depth, result Result, _ time.Duration) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.results, w.depths = append(w.results, result), append(w.depths, from)
}

func (w *world) Queued(change int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.queued, w.queuedAt = append(w.queued, change), append(w.queuedAt, time.Since(w.began))
}

func newWorld(t *testing.T, limit time.Duration, change func(*cnpgv1.Cluster)) *world {
	t.Helper()
	cluster := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "cluster", Annotations: map[string]string{
			contract.AnnotationEnabled: "true", contract.AnnotationHibernation: "on", contract.AnnotationAsleepSince: "x", contract.AnnotationAsleepReason: "x", contract.AnnotationGatewayReady: "x",
		}},
		Spec:   cnpgv1.ClusterSpec{Instances: 2, ImageName: "example.org/postgresql:17.5", Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}},
		Status: cnpgv1.ClusterStatus{CurrentPrimary: "orders-1", TargetPrimary: "orders-1"},
	}
	hibernated(cluster)
	change(cluster)
	objects := []client.Object{cluster}
	for _, service := range []*corev1.Service{
		specs.CreateClusterReadWriteService(*cluster), specs.CreateClusterReadOnlyService(*cluster), specs.CreateClusterReadService(*cluster),
	} {
		service.UID = types.UID(service.Name)
		objects = append(objects, service)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, notifier: &Notifier{}, recorder: record.NewFakeRecorder(100), began: time.Now(), interfere: irrelevant, made: same}
	w.manager.Store(contract.FieldManager)
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := c.Get(ctx, key, o, options...)
			o.SetManagedFields(nil)
			for _, key := range []string{contract.AnnotationHibernation, contract.AnnotationFencedInstances} {
				if o.GetAnnotations()[key] != "" {
					o.SetManagedFields(append(o.GetManagedFields(), metav1.ManagedFieldsEntry{
						Manager: w.manager.Load().(string), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + key + `":{}}}}`),
					}))
				}
			}
			return err
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if w.conflict.Add(-1) >= 0 {
				w.change(w.interfere) //nolint:contextcheck // somebody else's change
			}
			if err := c.Patch(ctx, o, patch, options...); err != nil {
				return err
			}
			body, err := patch.Data(o)
			defer w.inform() //nolint:contextcheck // as the informers do
			w.mutex.Lock()
			defer w.mutex.Unlock()
			w.patches = append(w.patches, string(body))
			return err
		},
	})
	builder = builder.WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string {
		return []string{o.(*corev1.Event).InvolvedObject.Name}
	})
	builder = builder.WithIndex(&corev1.Pod{}, "status.podIP", func(o client.Object) []string { return []string{o.(*corev1.Pod).Status.PodIP} })
	builder = builder.WithIndex(&corev1.Pod{}, "spec.hostNetwork", func(o client.Object) []string {
		return []string{strconv.FormatBool(o.(*corev1.Pod).Spec.HostNetwork)}
	})
	w.api = informerstest.Index(builder).Build()
	base, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	w.waker = &Waker{
		Informers: informerstest.Reader(w.api), APIReader: w.api, Client: w.api, Notifier: w.notifier, Stopping: &Stopping{},
		Stale:  func() bool { return w.stale.Load() },
		Events: &events.Writer{Client: w.api, Pod: "a"}, Recorder: w.recorder,
		Observer: w, Logger: slog.New(slog.DiscardHandler), Budget: NewBudget(0, 0, 0), PodSearches: semaphore.NewWeighted(PodSearches), Limit: limit, Base: base,
		Allowed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, NodesWait: 2 * time.Second, Addresses: []netip.Addr{netip.MustParseAddr("10.2.0.1")},
		Signal: func(_ context.Context, instance, client netip.AddrPort) {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			w.signals = append(w.signals, client.Addr().Unmap().String()+" at "+instance.String())
		},
		Listens: func(context.Context, netip.AddrPort) bool { return w.bouncer.Load() },
		PasswordSet: func(_ context.Context, primary netip.Addr, role string) bool {
			return primary.String() == "10.0.0.1" && role == "app" && !time.Now().Before(w.passwordSet)
		},
		Probe: func(context.Context, netip.AddrPort) bool {
			w.mutex.Lock()
			defer w.mutex.Unlock()
			w.probes++
			return w.postgres.Load()
		},
	}
	before := cluster.DeepCopy()
	awake(before)
	delete(before.Annotations, contract.AnnotationFencedInstances)
	delete(before.Annotations, contract.AnnotationDozingSince)
	w.waker.Stopping.Note(before, time.Now()) // its Secrets are those of before it slept
	w.inform()
	return w
}

func hibernated(c *cnpgv1.Cluster) {
	c.Status.Conditions = []metav1.Condition{{Type: contract.AnnotationHibernation, Status: metav1.ConditionTrue, Reason: "Hibernated"}}
}

func awake(c *cnpgv1.Cluster) {
	delete(c.Annotations, contract.AnnotationHibernation)
	c.Status.Conditions = nil
}

// change changes the Cluster, as the operator or a person does.
func (w *world) change(change func(*cnpgv1.Cluster)) {
	w.t.Helper()
	var cluster cnpgv1.Cluster
	if err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &cluster); err != nil {
		w.t.Error(err)
	}
	change(&cluster)
	if err := w.api.Update(w.t.Context(), &cluster); err != nil {
		w.t.Error(err)
	}
	w.inform()
}

// inform says that the Cluster has changed, as the informers do.
func (w *world) inform() {
	w.waker.Stopping.Note(w.read(), time.Now())
	w.notifier.Notify(types.NamespacedName{Namespace: namespace, Name: name})
}

// touch makes an irrelevant change.
func (w *world) touch() { w.change(irrelevant) }

func irrelevant(c *cnpgv1.Cluster) { c.Annotations["team"] += "x" }

// maintained starts a node maintenance in which the operator deletes the volumes of an instance that cannot be scheduled.
func maintained(c *cnpgv1.Cluster) {
	reuse := false
	c.Spec.NodeMaintenanceWindow = &cnpgv1.NodeMaintenanceWindow{InProgress: true, ReusePVC: &reuse}
}

// pod creates or changes an instance.
func (w *world) pod(pod, address string, change func(*corev1.Pod)) {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod, Labels: map[string]string{"cnpg.io/cluster": name, "cnpg.io/podRole": "instance"}, OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster", Name: name, UID: "cluster", Controller: ptr.To(true)}}},
		Status:     corev1.PodStatus{PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}},
	}
	change(p)
	goes := !p.DeletionTimestamp.IsZero()
	if err := w.api.Create(w.t.Context(), p); err != nil {
		w.t.Error(err)
	}
	if goes {
		if err := w.api.Delete(w.t.Context(), p); err != nil {
			w.t.Error(err)
		}
	}
	w.notifier.Notify(types.NamespacedName{Namespace: namespace, Name: name})
}

func (w *world) endpoint(service, address string) {
	w.t.Helper()
	err := w.api.Create(w.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service + "-abc", Labels: map[string]string{
			"cnpg.io/cluster": name, discoveryv1.LabelServiceName: service,
		}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
	})
	if err != nil {
		w.t.Error(err)
	}
	w.notifier.Notify(types.NamespacedName{Namespace: namespace, Name: name})
}

func same(*corev1.Pod) {}

func ready(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

// ended makes an evicted pod, which keeps an address that another pod may have by now.
func ended(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }

// terminating deletes a pod that has a finalizer, so that it stays until it is removed.
func terminating(p *corev1.Pod) {
	p.Finalizers = []string{"test/stays"}
	p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
}

func service(suffix string) gateway.Service {
	return gateway.Service{Namespace: namespace, Name: name + suffix, UID: types.UID(name + suffix), Cluster: name}
}

var by = gateway.Client{Peer: netip.MustParseAddrPort("[::ffff:10.1.2.3]:4711"), User: "app", Database: "shop"}

// operate does what the operator does after hibernation is turned off.
func (w *world) operate() {
	for {
		notified := w.notifier.Listen(types.NamespacedName{Namespace: namespace, Name: name})
		var cluster cnpgv1.Cluster
		if err := w.api.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &cluster); err != nil {
			return
		}
		if cluster.Annotations[contract.AnnotationHibernation] == "" {
			break
		}
		select {
		case <-w.t.Context().Done():
			return
		case <-notified:
		case <-time.After(10 * time.Millisecond):
		}
	}
	wait := func(d time.Duration) bool {
		select {
		case <-w.t.Context().Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	if !wait(2 * time.Second) {
		return
	}
	w.change(awake)
	w.pod("orders-1", "10.0.0.1", w.made)
	if wait(time.Second) {
		w.postgres.Store(true)
	}
}

// The Event tells people why a wake took ten seconds.
func TestWoken_saysWhatPostgreSQLWaitedFor(t *testing.T) {
	t.Parallel()
	always := ptr.To(corev1.ContainerRestartPolicyAlways)
	for _, row := range []struct {
		rule  string
		probe *corev1.Probe
		want  string
	}{
		{"a sidecar that is probed every second is not named", &corev1.Probe{PeriodSeconds: 1}, ""},
		{"one of a longer period is", &corev1.Probe{}, `; PostgreSQL's container was started after init container "plugin-backup", whose startup probe runs every 10 s`},
		{"one of a delay is", &corev1.Probe{InitialDelaySeconds: 7, PeriodSeconds: 1}, `; PostgreSQL's container was started after init container "plugin-backup", whose startup probe runs every 1 s from 7 s on`},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
				w.made = func(p *corev1.Pod) {
					p.Spec.InitContainers = []corev1.Container{{Name: "plugin-backup", RestartPolicy: always, StartupProbe: row.probe}}
				}
				go w.operate()
				if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
					t.Fatal(err)
				}
				messages := w.woken()
				if len(messages) != 1 {
					t.Fatalf("events: %v", messages)
				}
				_, last, _ := strings.Cut(messages[0], "accepted sessions ")
				if _, added, _ := strings.Cut(last, " later"); added != row.want {
					t.Errorf("it adds %q, want %q: %s", added, row.want, messages[0])
				}
			})
		})
	}
}

func (w *world) seen() (patches []string, results []Result, probes int, events []string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for len(w.recorder.Events) != 0 {
		events = append(events, <-w.recorder.Events)
	}
	return w.patches, w.results, w.probes, events
}

// woken returns the messages of the Events that say who woke the cluster, once all are written.
func (w *world) woken() []string {
	w.t.Helper()
	synctest.Wait()
	var all corev1.EventList
	if err := w.api.List(w.t.Context(), &all); err != nil {
		w.t.Fatal(err)
	}
	var messages []string
	for i := range all.Items {
		messages = append(messages, all.Items[i].Message)
	}
	return messages
}

func TestTwoHundredClientsMakeOneWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		go w.operate()
		var answered atomic.Int32
		var group sync.WaitGroup
		for i := range 200 {
			group.Go(func() {
				address, err := w.waker.Resolve(t.Context(), service([]string{"-rw", "-r"}[i%2]), by)
				if err != nil || address != netip.MustParseAddrPort("10.0.0.1:5432") {
					t.Errorf("got %s, %v", address, err)
				}
				answered.Add(1)
			})
		}
		group.Wait()
		patches, results, probes, _ := w.seen()
		if answered.Load() != 200 || len(patches) != 1 {
			t.Fatalf("%d answers by %d patches, want 200 by one", answered.Load(), len(patches))
		}
		if diff := cmp.Diff([]Result{ResultSuccess}, results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if probes > 2*52 { // a second of asking every 20 ms, for each Service
			t.Errorf("PostgreSQL was asked %d times", probes)
		}
		messages := w.woken()
		if len(messages) != 1 || !strings.HasPrefix(messages[0], `Woken by 10.1.2.3 (user "app", database "shop") through Service orders-r`) {
			t.Errorf("events: %v", messages)
		}
		var cluster cnpgv1.Cluster
		if err := w.api.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &cluster); err != nil {
			t.Fatal(err)
		}
		recorded, err := contract.ParseLastWake(cluster.Annotations[contract.AnnotationLastWake])
		if err != nil {
			t.Fatal(err)
		}
		if recorded.By != "10.1.2.3" || recorded.User != "app" || recorded.Database != "shop" || recorded.At.IsZero() || !strings.HasPrefix(recorded.Service, name) {
			t.Errorf("last-wake says %+v", recorded)
		}
		value := cluster.Annotations[contract.AnnotationLastWake]
		survivor := &events.Writer{Client: w.api, Pod: "b"}
		if err := survivor.Write(t.Context(), &cluster, plan.Woken(value, "Woken"), time.Now()); err != nil {
			t.Errorf("another replica tells of it too: %v", err)
		}
		if diff := cmp.Diff(messages, w.woken()); diff != "" {
			t.Errorf("what another replica tells (-before +after):\n%s", diff)
		}
		delete(cluster.Annotations, contract.AnnotationLastWake)
		if diff := cmp.Diff(map[string]string{contract.AnnotationEnabled: "true"}, cluster.Annotations); diff != "" {
			t.Errorf("annotations (-want +got):\n%s", diff)
		}
	})
}

func TestResolve(t *testing.T) {
	t.Parallel()
	unchanged := func(*cnpgv1.Cluster) {}
	primary := netip.MustParseAddrPort("10.0.0.1:5432")
	for _, row := range []struct {
		rule    string
		cluster func(*cnpgv1.Cluster)
		service string
		before  func(*world) // before the client connects
		later   func(*world) // a second after that
		want    netip.AddrPort
		err     error
		patches int
		result  []Result
	}{
		{"an awake cluster is not patched", awake, "-rw", func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) }, nil, primary, nil, 0, nil},
		{"an awake cluster's instance is waited for", awake, "-rw", nil, func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) }, primary, nil, 0, nil},
		{"-ro waits for a replica", awake, "-ro", func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) },
			func(w *world) { w.pod("orders-2", "10.0.0.2", same) }, netip.MustParseAddrPort("10.0.0.2:5432"), nil, 0, nil},
		{"what the Service offers serves where no instance has the role", awake, "-ro",
			func(w *world) {
				w.postgres.Store(true)
				w.pod("orders-1", "10.0.0.1", same)
				w.endpoint("orders-ro", "10.0.0.1")
			}, nil, primary, nil, 0, nil},
		{"an endpoint that is no instance's may be another cluster's by now", awake, "-rw", func(w *world) { w.postgres.Store(true); w.endpoint("orders-rw", "10.0.0.9") },
			func(w *world) { w.pod("orders-1", "10.0.0.1", same) }, primary, nil, 0, nil},
		{"such an endpoint does not keep the cluster asleep", unchanged, "-rw",
			func(w *world) { w.postgres.Store(true); w.endpoint("orders-rw", "10.0.0.9"); go w.operate() }, nil, primary, nil, 1, []Result{ResultSuccess}},
		{"an instance that has ended has lost its address", awake, "-r", func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", ended) },
			func(w *world) { w.pod("orders-2", "10.0.0.2", same) }, netip.MustParseAddrPort("10.0.0.2:5432"), nil, 0, nil},
		{"once hibernation is on nobody is passed to an instance that still answers", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw",
			func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) }, nil, netip.AddrPort{}, gateway.ErrTimeout, 0, []Result{ResultTimeout}},
		{"hibernation that is withdrawn leaves it to serve", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw",
			func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) }, func(w *world) { w.change(awake) }, primary, nil, 0, nil},
		{"while pods are being deleted hibernation stays", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw",
			func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", terminating) }, nil, netip.AddrPort{}, gateway.ErrTimeout, 0, []Result{ResultTimeout}},
		{"a condition of before does not count while there are pods", unchanged, "-rw",
			func(w *world) { w.pod("orders-1", "10.0.0.1", terminating) }, nil, netip.AddrPort{}, gateway.ErrTimeout, 0, []Result{ResultTimeout}},
		{"without the condition hibernation stays", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw", nil, nil, netip.AddrPort{}, gateway.ErrTimeout, 0, []Result{ResultTimeout}},
		{"once it is there hibernation is turned off", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw", nil,
			func(w *world) { w.change(hibernated); go w.operate() }, primary, nil, 1, []Result{ResultSuccess}},
		{"a person's hibernation is not undone", unchanged, "-rw", func(w *world) { w.manager.Store("kubectl-annotate") }, nil, netip.AddrPort{}, gateway.ErrAsleepByHand, 0, []Result{ResultByHand}},
		{"a person who switches meanwhile ends the wake", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw", nil,
			func(w *world) { w.manager.Store("kubectl-annotate"); w.touch() }, netip.AddrPort{}, gateway.ErrAsleepByHand, 0, []Result{ResultByHand}},
		{"a wake that may have the operator delete volumes is refused at once", maintained, "-rw", nil, nil, netip.AddrPort{}, gateway.ErrMaintenance, 0, []Result{ResultMaintenance}},
		{"so is one that began before the maintenance", func(c *cnpgv1.Cluster) { c.Status.Conditions = nil }, "-rw", nil,
			func(w *world) { w.change(maintained) }, netip.AddrPort{}, gateway.ErrMaintenance, 0, []Result{ResultMaintenance}},
		{"maintenance that began since the Cluster was read is seen before hibernation is turned off", unchanged, "-rw",
			func(w *world) { w.conflict.Store(1); w.interfere = maintained }, nil, netip.AddrPort{}, gateway.ErrMaintenance, 0, []Result{ResultMaintenance}},
		{"an instance that runs serves during maintenance", func(c *cnpgv1.Cluster) { awake(c); maintained(c) }, "-rw",
			func(w *world) { w.postgres.Store(true); w.pod("orders-1", "10.0.0.1", same) }, nil, primary, nil, 0, nil},
		{"wake=manual is obeyed", func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationWake] = "manual" }, "-rw", nil, nil, netip.AddrPort{}, gateway.ErrAsleepByHand, 0, []Result{ResultByHand}},
		{"a conflict is read again", unchanged, "-rw", func(w *world) { w.conflict.Store(3); go w.operate() }, nil, primary, nil, 1, []Result{ResultSuccess}},
		{"a cluster that another replica woke is waited for", unchanged, "-rw", nil, func(w *world) { w.change(awake); go w.operate() }, primary, nil, 0, nil},
		{"a wake that does not come ends", unchanged, "-rw", nil, nil, netip.AddrPort{}, gateway.ErrTimeout, 1, []Result{ResultTimeout}},
		{"rules that tell addresses apart send the client away once it is awake", func(c *cnpgv1.Cluster) {
			c.Spec.PostgresConfiguration.PgHBA = []string{"host all all 10.1.0.0/16 md5"}
		}, "-rw", func(w *world) { go w.operate() }, func(w *world) { w.later(5*time.Second, func() { w.endpoint("orders-rw", "10.0.0.1") }) },
			netip.AddrPort{}, gateway.ErrReconnect, 1, []Result{ResultSuccess}},
		{"so do selected pods", func(c *cnpgv1.Cluster) {
			awake(c)
			c.Spec.PodSelectorRefs = []cnpgv1.PodSelectorRef{{Name: "app"}}
		}, "-rw", func(w *world) {
			w.postgres.Store(true)
			w.pod("orders-1", "10.0.0.1", same)
			w.endpoint("orders-rw", "10.0.0.1")
		}, nil, netip.AddrPort{}, gateway.ErrReconnect, 0, nil},
		{"unless an annotation accepts the gateway's address", func(c *cnpgv1.Cluster) {
			c.Spec.PostgresConfiguration.PgHBA = []string{"host all all 10.1.0.0/16 md5"}
			c.Annotations[contract.AnnotationGatewayAddress] = "accept"
		}, "-rw", func(w *world) { go w.operate() }, nil, primary, nil, 1, []Result{ResultSuccess}},
		{"a Service that is gone serves nobody", awake, "-gone", nil, nil, netip.AddrPort{}, gateway.ErrGone, 0, nil},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 30*time.Second, row.cluster)
				if strings.Contains(row.rule, "another replica woke") { // the other one turns hibernation off first
					w.change(func(c *cnpgv1.Cluster) { c.Status.Conditions = nil })
				}
				if strings.Contains(row.rule, "does not come") {
					w.later(time.Second, func() { w.pod("orders-1", "10.0.0.1", same) })
				}
				if row.before != nil {
					row.before(w)
				}
				if row.later != nil {
					w.later(time.Second, func() { row.later(w) })
				}
				got, err := w.waker.Resolve(t.Context(), service(row.service), by)
				synctest.Wait() // the search ends concurrently with its client
				if got != row.want || !errors.Is(err, row.err) {
					t.Errorf("got %s, %v, want %s, %v", got, err, row.want, row.err)
				}
				patches, results, probes, events := w.seen()
				if len(patches) != row.patches {
					t.Errorf("%d patches, want %d: %v", len(patches), row.patches, patches)
				}
				if diff := cmp.Diff(row.result, results); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
				if probes > 101+30+30 {
					t.Errorf("PostgreSQL was asked %d times in half a minute", probes)
				}
				if said := strings.Join(events, "\n"); errors.Is(row.err, gateway.ErrTimeout) != strings.Contains(said, "WakeTimedOut") {
					t.Errorf("events: %s", said)
				}
			})
		})
	}
}

// Nobody is held for an instance that serves everybody but the plugin, as behind a NetworkPolicy that does not admit it.
func TestResolve_sendsClientsToAnInstanceThatOnlyTheyReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, awake)
		w.pod("orders-1", "10.0.0.1", same)
		w.later(10*time.Second, func() { w.endpoint("orders-rw", "10.0.0.1") })
		began := time.Now()
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); !errors.Is(err, gateway.ErrReconnect) {
			t.Errorf("got %v", err)
		}
		if took, most := time.Since(began), 10*time.Second+w.waker.NodesWait+reachesWithin; took < most || took > most+2*readAgain {
			t.Errorf("the client was held for %s", took)
		}
		synctest.Wait()
		if _, _, _, events := w.seen(); len(events) != 1 || !strings.Contains(events[0], "InstanceUnreachable PostgreSQL serves the clients of Service orders-rw") {
			t.Errorf("events: %v", events)
		}
	})
}

// later does something after a while, within the test.
func (w *world) later(d time.Duration, do func()) {
	go func() {
		select {
		case <-w.t.Context().Done():
		case <-time.After(d):
			do()
		}
	}()
}

// The API server may apply the patch and its answer be lost. The wake is this one's all the same, and is counted once and told.
func TestResolve_countsAWakeWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule  string
		stale bool
	}{{"the informers show the change at once", false}, {"the informers are late, and the patch is tried again", true}} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
				go w.operate()
				api, _ := w.api.(client.WithWatch)
				var before cnpgv1.Cluster
				if err := w.api.Get(t.Context(), clusterOf(service("-rw")), &before); err != nil {
					t.Fatal(err)
				}
				tries := 0
				w.waker.Client = interceptor.NewClient(api, interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
						if tries++; tries == 1 {
							_ = c.Patch(ctx, o, patch, options...)
							return errors.New("unexpected EOF")
						}
						return c.Patch(ctx, o, patch, options...)
					},
				})
				if row.stale {
					w.waker.Informers = informerstest.Reader(interceptor.NewClient(api, interceptor.Funcs{
						Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
							if cluster, is := o.(*cnpgv1.Cluster); is && tries < 2 {
								before.DeepCopyInto(cluster)
								return nil
							}
							return c.Get(ctx, key, o, options...)
						},
					}))
				}
				if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
					t.Fatal(err)
				}
				messages := w.woken()
				if patches, results, _, _ := w.seen(); len(patches) != 1 || !slices.Equal(results, []Result{ResultSuccess}) {
					t.Errorf("results %v of %d patches that were applied", results, len(patches))
				}
				if len(messages) != 1 || !strings.HasPrefix(messages[0], "Woken by 10.1.2.3 ") || strings.Contains(messages[0], "how long it took is unknown") {
					t.Errorf("Events: %v", messages)
				}
			})
		})
	}
}

func TestAClientThatLeavesDoesNotEndTheWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		go w.operate()
		impatient, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := w.waker.Resolve(impatient, service("-rw"), by); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if _, err := w.waker.Resolve(t.Context(), service("-rw"), by); err != nil {
			t.Error(err)
		}
		if patches, _, _, _ := w.seen(); len(patches) != 1 {
			t.Errorf("%d patches, want one", len(patches))
		}
	})
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Minute, func(c *cnpgv1.Cluster) {
		c.Annotations[contract.AnnotationIgnore] = "client=10.9.0.0/16; user=x client=10.8.0.0/16"
	})
	w.pod("orders-1", "10.0.0.1", same)
	w.pod("going-1", "10.0.0.2", terminating)
	w.pod("ended-1", "10.0.0.5", ended)
	w.pod("pooler-1", "10.0.0.3", func(p *corev1.Pod) { p.Labels["cnpg.io/podRole"] = "pooler" })
	w.pod("invoices-1", "10.0.0.4", func(p *corev1.Pod) { p.Labels["cnpg.io/cluster"] = "invoices" })
	for _, row := range []struct {
		rule, address string
		want          gateway.Refusal
	}{
		{"a client is served", "10.1.2.3", ""},
		{"also where IPv4 comes as IPv6", "::ffff:10.1.2.3", ""},
		{"an instance of the cluster is not", "10.0.0.1", gateway.RefusalInstance},
		{"nor one that is being deleted", "10.0.0.2", gateway.RefusalInstance},
		{"the address of one that has ended may be a client's", "10.0.0.5", ""},
		{"a pooler is a client", "10.0.0.3", ""},
		{"an instance of another cluster is a client", "10.0.0.4", ""},
		{"an ignored address is not served", "10.9.1.1", gateway.RefusalIgnored},
		{"a pattern that asks for more than the address ignores nobody here", "10.8.1.1", ""},
		{"an address that is not allowed is not served", "192.0.2.1", gateway.RefusalNotAllowed},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if got := w.waker.Refuses(service("-rw"), netip.AddrPortFrom(netip.MustParseAddr(row.address), 1)); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestSendsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Minute, awake)
	w.pod("orders-1", "10.0.0.1", ready)
	for suffix, want := range map[string]bool{"-rw": false, "-gone": true} {
		if got := w.waker.MustReconnect(service(suffix), by.Peer); got != want {
			t.Errorf("%s: got %t, want %t", suffix, got, want)
		}
	}
	w.change(func(c *cnpgv1.Cluster) {
		c.Spec.PostgresConfiguration.PgHBA = []string{"host replication streaming_replica 10.1.0.0/16 md5"}
	})
	if !w.waker.MustReconnect(service("-rw"), by.Peer) {
		t.Error("rules that tell addresses apart do not send a session away")
	}
}

func TestRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Minute, awake)
	w.pod("orders-1", "10.0.0.1", ready)
	w.pod("orders-2", "10.0.0.2", same)
	w.pod("orders-3", "10.0.0.3", func(p *corev1.Pod) { ready(p); terminating(p) })
	for suffix, want := range map[string][]netip.AddrPort{
		"-rw": {primary}, "-r": {primary}, "-gone": nil,
		"-ro": {netip.MustParseAddrPort("10.0.0.2:5432")}, // the kubelet may report a ready instance late
	} {
		if got := w.waker.Running(t.Context(), service(suffix)); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", suffix, got, want)
		}
	}
	if _, _, probes, _ := w.seen(); probes != 0 {
		t.Error("PostgreSQL was asked")
	}
	w.change(func(c *cnpgv1.Cluster) { c.Annotations[contract.AnnotationHibernation] = "on" })
	if got := w.waker.Running(t.Context(), service("-rw")); len(got) != 0 {
		t.Errorf("once hibernation is on %v are said to accept sessions", got)
	}
}

// A pod that only has an instance's labels, such as a copy for debugging, is not waited for: the operator has hibernated the cluster.
func TestResolve_aPodWithTheLabelsOnlyBlocksNoWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Minute, func(*cnpgv1.Cluster) {})
		w.pod("orders-1-debug", "10.0.0.9", func(p *corev1.Pod) { p.OwnerReferences = nil })
		go w.operate()
		got, err := w.waker.Resolve(t.Context(), service("-rw"), by)
		if err != nil || got != primary {
			t.Errorf("got %s, %v", got, err)
		}
	})
}

// A standby that the Cluster's readiness probe keeps out of the Services until it streams gets no session here either: its data may be old.
func TestRunning_leavesOutStandbysThatMayLag(t *testing.T) {
	t.Parallel()
	w := newWorld(t, time.Minute, func(c *cnpgv1.Cluster) {
		awake(c)
		c.Spec.Probes = &cnpgv1.ProbesConfiguration{Readiness: &cnpgv1.ProbeWithStrategy{Type: cnpgv1.ProbeStrategyStreaming}}
	})
	w.pod("orders-1", "10.0.0.1", same)
	w.pod("orders-2", "10.0.0.2", same)
	for suffix, want := range map[string][]netip.AddrPort{"-rw": {primary}, "-r": {primary}, "-ro": nil} {
		if got := w.waker.Running(t.Context(), service(suffix)); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", suffix, got, want)
		}
	}
	w.pod("orders-3", "10.0.0.3", ready)
	if got, want := w.waker.Running(t.Context(), service("-ro")), []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:5432")}; !slices.Equal(got, want) {
		t.Errorf("got %v, want the standby that streams", got)
	}
}
