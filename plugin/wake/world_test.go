package wake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cloudnative-pg/pkg/specs"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cnpg-i/scale-to-zero/internal/informerstest"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const system = "cnpg-system"

var orders = types.NamespacedName{Namespace: "shop", Name: "orders"}

// ofOrders says that the operator made a pod for the cluster.
var ofOrders = []metav1.OwnerReference{{Kind: "Cluster", Name: orders.Name, UID: "cluster", Controller: ptr.To(true)}}

// world is a Kubernetes cluster: an API server, and what kube-proxy does with its EndpointSlices.
type world struct {
	t   *testing.T
	api client.Client

	mutex      sync.Mutex
	writes     []string                  // verb and kind of what was written
	manager    string                    // the field manager that turned hibernation on
	fencer     string                    // the field manager that fenced the cluster
	scaler     string                    // the field manager that scaled the Poolers
	unrouted   []discoveryv1.AddressType // the families for which this network ignores our slices
	passedOver string                    // an address to which nothing is routed
	bound      bool                      // whether session affinity leads the gateway's own connections to an instance
	eventless  bool                      // whether Events cannot be written
	isolated   bool                      // whether the instances accept no connection from the plugin
	sliceless  bool                      // whether EndpointSlices cannot be created
	refused    string                    // the verb and kind of what cannot be written
	refusal    error                     // instead of an error of no kind
	listless   bool                      // whether Backups cannot be listed
	listed     int                       // how often Backups were listed
	deleteAll  time.Duration             // how long the API server takes to delete a collection
	mute       []string                  // the addresses at which replicas do not answer each other
	slow       string                    // the replica that gets no answer in time, not even from itself
	deaf       string                    // the replica that the API server does not answer
	addresses  map[string][]string       // those of the replicas, by name
	turn, made int
	dialed     int      // how often a replica has connected to a Service or an instance
	woken      []string // the wakes that were observed
	networks   []*network
	logged     bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster := &cnpgv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: orders.Name, UID: "cluster", Annotations: map[string]string{contract.AnnotationEnabled: "true"}},
		Spec:       cnpgv1.ClusterSpec{Instances: 1, ImageName: "example.org/postgresql:17.5", Plugins: []cnpgv1.PluginConfiguration{{Name: contract.PluginName}}},
	}
	objects := []client.Object{cluster}
	for i, service := range []*corev1.Service{
		specs.CreateClusterReadWriteService(*cluster), specs.CreateClusterReadOnlyService(*cluster), specs.CreateClusterReadService(*cluster),
		specs.CreateClusterAnyService(*cluster),
	} {
		service.UID = types.UID(service.Name)
		service.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: orders.Name, UID: "cluster"}}
		service.Spec.ClusterIP = "10.96.0." + strconv.Itoa(i+1)
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
		objects = append(objects, service)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cnpgv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, manager: contract.FieldManager, fencer: contract.FieldManager, scaler: contract.FieldManager, addresses: map[string][]string{}}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(w.intercept())
	w.api = informerstest.Index(builder).Build()
	t.Cleanup(func() {
		for _, n := range w.networks {
			n.close()
		}
	})
	return w
}

// intercept records writes, and says who turned hibernation on.
func (w *world) intercept() interceptor.Funcs {
	note := func(verb string, o client.Object) error {
		w.mutex.Lock()
		defer w.mutex.Unlock()
		kind := "Cluster"
		switch o.(type) {
		case *discoveryv1.EndpointSlice:
			kind = "EndpointSlice"
		case *corev1.ConfigMap:
			kind = "ConfigMap"
		case *corev1.Event:
			kind = "Event"
		case *corev1.Pod:
			kind = "Pod"
		case *cnpgv1.Pooler:
			kind = "Pooler"
		case *cnpgv1.Backup:
			kind = "Backup"
		}
		w.writes = append(w.writes, verb+" "+kind)
		if w.refused == verb+" "+kind {
			if w.refusal != nil {
				return w.refusal
			}
			return fmt.Errorf("%s: not today", w.refused)
		}
		return nil
	}
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := c.Get(ctx, key, o, options...)
			if cluster, ok := o.(*cnpgv1.Cluster); ok {
				w.manage(cluster)
			}
			return err
		},
		List: func(ctx context.Context, c client.WithWatch, into client.ObjectList, options ...client.ListOption) error {
			err := c.List(ctx, into, options...)
			switch found := into.(type) {
			case *cnpgv1.BackupList:
				w.listed++
				if w.listless {
					return context.DeadlineExceeded
				}
			case *cnpgv1.ClusterList:
				for i := range found.Items {
					w.manage(&found.Items[i])
				}
			case *cnpgv1.PoolerList:
				for i := range found.Items {
					found.Items[i].ManagedFields = []metav1.ManagedFieldsEntry{
						{Manager: w.scaler, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:instances":{}}}`)},
					}
				}
			case *cnpgv1.ScheduledBackupList:
				for i := range found.Items {
					found.Items[i].ManagedFields = []metav1.ManagedFieldsEntry{
						{Manager: w.manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:suspend":{}}}`)},
					}
				}
			}
			return err
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := note("create", o); err != nil {
				return err
			}
			if _, ok := o.(*corev1.Event); ok && w.eventless {
				return errors.New("no Events today")
			}
			if _, ok := o.(*discoveryv1.EndpointSlice); ok && w.sliceless {
				return errors.New("no EndpointSlices today")
			}
			o.SetUID(types.UID(o.GetName()))
			if _, ok := o.(*discoveryv1.EndpointSlice); ok { // what is made again is another one
				w.made++
				o.SetUID(types.UID(o.GetName() + "-" + strconv.Itoa(w.made)))
			}
			o.SetCreationTimestamp(metav1.Now())
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if err := note("update", o); err != nil {
				return err
			}
			return c.Update(ctx, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := note("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, patch, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if err := note("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, options...)
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteAllOfOption) error {
			if err := note("delete all", o); err != nil {
				return err
			}
			if pause(ctx, w.deleteAll); ctx.Err() != nil {
				return ctx.Err()
			}
			return c.DeleteAllOf(ctx, o, options...)
		},
	}
}

// manage says who turned hibernation on, and who fenced the cluster.
func (w *world) manage(cluster *cnpgv1.Cluster) {
	cluster.ManagedFields = nil
	for key, manager := range map[string]string{contract.AnnotationHibernation: w.manager, contract.AnnotationFencedInstances: w.fencer} {
		if cluster.Annotations[key] != "" {
			cluster.ManagedFields = append(cluster.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:` + key + `":{}}}}`),
			})
		}
	}
}

// wrote returns the writes since the last call.
func (w *world) wrote() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	wrote := w.writes
	w.writes = nil
	slices.Sort(wrote)
	return wrote
}

// cluster changes the Cluster, as a sidecar, the operator or a person does.
func (w *world) cluster(change func(*cnpgv1.Cluster)) *cnpgv1.Cluster {
	w.t.Helper()
	var cluster cnpgv1.Cluster
	if err := w.api.Get(w.t.Context(), orders, &cluster); err != nil {
		w.t.Fatal(err)
	}
	if change != nil {
		change(&cluster)
		if err := w.api.Update(w.t.Context(), &cluster); err != nil {
			w.t.Fatal(err)
		}
		w.wrote()
	}
	return &cluster
}

func annotated(key, value string) func(*cnpgv1.Cluster) {
	return func(c *cnpgv1.Cluster) {
		if value == "" {
			delete(c.Annotations, key)
		} else {
			c.Annotations[key] = value
		}
	}
}

func announced(ahead time.Duration) string {
	return "pod-uid " + time.Now().Add(ahead).UTC().Format(time.RFC3339Nano)
}

// events returns the Events about the cluster.
func (w *world) events() []corev1.Event {
	w.t.Helper()
	var all corev1.EventList
	if err := w.api.List(w.t.Context(), &all); err != nil {
		w.t.Fatal(err)
	}
	return all.Items
}

// dual gives the Services an address of each family.
func (w *world) dual() {
	w.t.Helper()
	var services corev1.ServiceList
	if err := w.api.List(w.t.Context(), &services); err != nil {
		w.t.Fatal(err)
	}
	for i := range services.Items {
		spec := &services.Items[i].Spec
		spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		spec.ClusterIPs = []string{spec.ClusterIP, "fd00::" + strconv.Itoa(i+1)}
		if err := w.api.Update(w.t.Context(), &services.Items[i]); err != nil {
			w.t.Fatal(err)
		}
	}
	w.wrote()
}

// endpoint gives the Service an endpoint of its own, by default one of IPv4.
func (w *world) endpoint(service string, ready bool, addresses ...string) {
	w.t.Helper()
	if addresses == nil {
		addresses = []string{"10.0.0.1"}
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: orders.Namespace, Name: service + "-own", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		Ports:     []discoveryv1.EndpointPort{{Port: ptr.To(int32(contract.PostgresPort))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	w.put(slice)
}

// put creates an object and replaces an existing one.
func (w *world) put(o client.Object) {
	w.t.Helper()
	if err := client.IgnoreNotFound(w.api.Delete(w.t.Context(), o)); err != nil {
		w.t.Fatal(err)
	}
	if err := w.api.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	w.wrote()
}

// routed returns the Services that lead to each replica, according to the slices.
func (w *world) routed() map[string][]string {
	w.t.Helper()
	var all discoveryv1.EndpointSliceList
	if err := w.api.List(w.t.Context(), &all); err != nil {
		w.t.Fatal(err)
	}
	routed := map[string][]string{}
	for i := range all.Items {
		if slice := &all.Items[i]; endpointslice.IsOurs(slice) {
			replica := string(endpointslice.ReplicaOf(slice))
			routed[replica] = append(routed[replica], slice.Labels[discoveryv1.LabelServiceName])
			slices.Sort(routed[replica])
		}
	}
	return routed
}

// replica is a pod of the plugin, with its controller.
type replica struct {
	*Controller
	network *network
	world   *world
}

// replica starts a replica. With an existing name it is the same pod, whose container was restarted.
func (w *world) replica(name string, addresses ...string) *replica {
	w.t.Helper()
	of := endpointslice.Replica{Namespace: system, Pod: name, UID: types.UID(name), Node: "node"}
	for _, address := range addresses {
		of.Addresses = append(of.Addresses, netip.MustParseAddr(address))
	}
	w.addresses[name] = addresses
	w.pod(name, corev1.ConditionTrue)
	n := &network{listening: map[uint16]*fakeListener{}, served: map[types.UID]net.Listener{}}
	w.networks = append(w.networks, n)
	r := &replica{network: n, world: w}
	n.of = r
	tell := &events.Writer{Client: w.api, Pod: name}
	r.Controller = New(Access{
		Settings: Settings{
			Replica: of, HandoverWait: 2 * time.Second, WakeTimeout: 5 * time.Minute, DrainTimeout: 20 * time.Second,
		},
		Client: w.api, Informers: informerstest.Reader(w.api), APIReader: apiReader{w.api, w, name}, Events: tell, Logger: slog.New(slog.NewTextHandler(&w.logged, nil)),
	}, Network{
		Ports:   &ports.Store{Client: w.api, APIReader: w.api, Namespace: system, Named: informerstest.Reader(w.api).Naming, Range: ports.Range{First: 10000, Last: 10999}},
		Gateway: n, Listen: n.listen, Dial: w.dial, Ask: func(ctx context.Context, asked netip.Addr) error { return w.ask(ctx, r, asked) },
		Notifier: &waker.Notifier{}, Stopping: &waker.Stopping{}, Budget: waker.NewBudget(0, 0, 0), Observer: w,
	})
	r.silent = make(chan event.GenericEvent, 8)
	return r
}

// Woke records a wake.
func (w *world) Woke(cluster types.NamespacedName, by contract.Cause, from waker.Depth, result waker.Result, took time.Duration) {
	w.woken = append(w.woken, fmt.Sprintf("%s by %s from %s: %s after %s", cluster.Name, by, from, result, took))
}

func (w *world) Queued(int) {}

// pod creates a replica's pod, or changes whether it is ready.
func (w *world) pod(name string, ready corev1.ConditionStatus) {
	w.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID(name)},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}}},
	}
	if addresses := w.addresses[name]; len(addresses) != 0 {
		pod.Status.PodIP = addresses[0]
	}
	w.put(pod)
}

// starts makes a replica's pod one that has not been ready yet, whose container has just been started.
func (w *world) starts(name string) {
	w.t.Helper()
	w.put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, UID: types.UID(name)},
		Status: corev1.PodStatus{
			StartTime:         ptr.To(metav1.Now()),
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}},
		},
	})
}

// read makes the replica reconcile the cluster.
func (r *replica) read() time.Duration {
	r.world.t.Helper()
	result, err := r.Reconcile(r.world.t.Context(), ctrl.Request{NamespacedName: orders})
	if err != nil {
		r.world.t.Fatal(err)
	}
	return result.RequeueAfter
}

// exposed creates a Service of the primary like kubectl expose: it has no label of the cluster.
func (w *world) exposed(name string, change func(*corev1.Service)) {
	w.t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: orders.Namespace, Name: name, UID: types.UID(name)},
		Spec: corev1.ServiceSpec{
			Selector:  map[string]string{"cnpg.io/cluster": orders.Name, "cnpg.io/instanceRole": "primary"},
			ClusterIP: "10.96.0.99", ClusterIPs: []string{"10.96.0.99"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: contract.PostgresPort}},
		},
	}
	change(service)
	w.put(service)
}

// dial acts as kube-proxy: it takes the addresses in turn, unless session affinity pins the connection to an instance.
func (w *world) dial(ctx context.Context, address string) (net.Conn, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.dialed++
	var services corev1.ServiceList
	var all discoveryv1.EndpointSliceList
	if err := errors.Join(w.api.List(ctx, &services), w.api.List(ctx, &all)); err != nil {
		return nil, err
	}
	to := netip.MustParseAddrPort(address).Addr()
	family := endpointslice.FamilyOf(to)
	if !slices.ContainsFunc(services.Items, func(s corev1.Service) bool { return slices.Contains(s.Spec.ClusterIPs, to.String()) }) && !w.isolated { // an instance
		here, there := net.Pipe()
		_ = there.Close()
		return here, nil
	}
	var behind []*fakeListener
	for i := range services.Items {
		if !slices.Contains(services.Items[i].Spec.ClusterIPs, to.String()) {
			continue
		}
		if services.Items[i].Spec.SessionAffinity == corev1.ServiceAffinityClientIP && w.bound {
			here, there := net.Pipe()
			_ = there.Close()
			return here, nil
		}
		if slices.Contains(w.unrouted, family) || to.String() == w.passedOver {
			continue
		}
		for j := range all.Items {
			if slice := &all.Items[j]; endpointslice.ServiceOf(slice) == services.Items[i].UID && slice.AddressType == family {
				for _, n := range w.networks {
					if l := n.at(endpointslice.PortOf(slice)); l != nil {
						behind = append(behind, l)
					}
				}
			}
		}
	}
	if len(behind) == 0 {
		return nil, errors.New("connection refused")
	}
	w.turn++
	return behind[w.turn%len(behind)].connect(to)
}

// ask is a probe of a replica: who is mute takes the connection of another and says nothing.
func (w *world) ask(ctx context.Context, by *replica, asked netip.Addr) error {
	w.mutex.Lock()
	itself := slices.Contains(by.Settings.Replica.Addresses, asked)
	mute := slices.Contains(w.mute, asked.String()) && !itself || w.slow == by.Settings.Replica.Pod
	w.mutex.Unlock()
	if mute {
		<-ctx.Done()
		return ctx.Err()
	}
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for _, n := range w.networks {
		if n.probes && slices.Contains(n.of.Settings.Replica.Addresses, asked) && n.of.Stale() {
			return errors.New("the API server has not answered")
		}
	}
	return nil
}

// apiReader reads from the API server for a replica.
type apiReader struct {
	client.Reader
	world *world
	by    string
}

func (r apiReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	r.world.mutex.Lock()
	deaf := r.world.deaf == r.by
	r.world.mutex.Unlock()
	if deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	return r.Reader.Get(ctx, key, o, options...)
}

// disturb changes which replica gets no answer in time, and which one none from the API server; empty: none.
func (w *world) disturb(slow, deaf string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.slow, w.deaf = slow, deaf
}

// silence has no replica get an answer from these addresses.
func (w *world) silence(addresses ...string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.mute = addresses
}

// network is what a replica listens on, and its gateway.
type network struct {
	mutex     sync.Mutex
	listening map[uint16]*fakeListener
	served    map[types.UID]net.Listener
	of        *replica
	probes    bool     // whether the replica probes others, and asks the API server
	drained   []string // what was still routed here when the drain began
	onDrain   func() []string
}

func (n *network) at(port uint16) *fakeListener {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.listening[port]
}

func (n *network) listen(_ context.Context, port uint16) (net.Listener, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.listening[port] != nil {
		return nil, errors.New("address already in use")
	}
	l := &fakeListener{came: make(chan net.Conn), closed: make(chan struct{})}
	l.free = func() {
		n.mutex.Lock()
		defer n.mutex.Unlock()
		delete(n.listening, port)
	}
	n.listening[port] = l
	return l, nil
}

// open returns the open ports.
func (n *network) open() []uint16 {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Sorted(maps.Keys(n.listening))
}

func (n *network) Open(service gateway.Service, l net.Listener) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.served[service.UID] = l
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
}

func (n *network) Close(uid types.UID) {
	n.mutex.Lock()
	l := n.served[uid]
	delete(n.served, uid)
	n.mutex.Unlock()
	if l != nil {
		_ = l.Close()
	}
}

func (n *network) Drain(context.Context) error {
	if n.onDrain != nil {
		n.drained = n.onDrain()
	}
	return nil
}

func (n *network) close() {
	n.mutex.Lock()
	uids := slices.Collect(maps.Keys(n.served))
	n.mutex.Unlock()
	for _, uid := range uids {
		n.Close(uid)
	}
}

// connection is a connection whose peer has an address.
type connection struct {
	net.Conn
	peer net.Addr
}

func (c connection) RemoteAddr() net.Addr { return c.peer }

// fakeListener is a listener without a network.
type fakeListener struct {
	came   chan net.Conn
	closed chan struct{}
	once   sync.Once
	free   func()
}

// connect uses the destination address as the source too, because only the family of a client matters.
func (l *fakeListener) connect(from netip.Addr) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case l.came <- connection{there, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(from.As16()), 40000))}:
		return here, nil
	case <-l.closed:
		return nil, errors.New("connection refused")
	}
}

func (l *fakeListener) Announce(func()) error { return nil }

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.came:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.once.Do(func() { close(l.closed); l.free() })
	return nil
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{} }
