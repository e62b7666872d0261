package wake

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	stdslices "slices"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/informers"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

// Gateway serves the listeners; it is [gateway.Gateway].
type Gateway interface {
	Open(service gateway.Service, listener net.Listener)
	Close(uid types.UID)
	Drain(ctx context.Context) error
}

// Settings are the controller's.
type Settings struct {
	// Replica is the pod that this is.
	Replica endpointslice.Replica
	// HandoverWait is how long other nodes' kube-proxies are given before an announcement is acknowledged.
	HandoverWait time.Duration
	// HibernatedBy are the field managers of other tools whose hibernation a connection ends too.
	HibernatedBy []string
	// WakeTimeout is how long a wake may take.
	WakeTimeout time.Duration
	// DrainTimeout is how long sessions are given when the plugin stops.
	DrainTimeout time.Duration
}

// Access is what all parts read and write through.
type Access struct {
	Settings Settings
	// Client writes; Informers are read; APIReader reads from the API server.
	Client    client.Client
	Informers informers.Reader
	APIReader client.Reader
	// Events writes Events.
	Events *events.Writer
	Logger *slog.Logger
}

// Network contains what connects the controller to the network and to the clients that wait for a cluster.
type Network struct {
	// Ports says which port belongs to which Service.
	Ports *ports.Store
	// Gateway serves the clients.
	Gateway Gateway
	// Listen opens a port, and Dial connects to a Service; they are the network's outside of tests.
	Listen func(ctx context.Context, port uint16) (net.Listener, error)
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	// Ask probes the replica at an address, until the context ends.
	Ask func(ctx context.Context, replica netip.Addr) error
	// Notifier tells those who wait for a cluster that it has changed.
	Notifier *waker.Notifier
	// Stopping remembers which clusters may be stopping.
	Stopping *waker.Stopping
	// Budget limits how many wakes may begin, and Observer is notified how those end that no client waits for.
	Budget   *waker.Budget
	Observer waker.Observer
}

// Controller carries the plans of all clusters out.
type Controller struct {
	*Access
	*router
	*handovers
	*peers
	*starting
	*hooks

	notifier *waker.Notifier
	memories keyed.Map[types.NamespacedName, plan.Memory] // what the last plan remembers
	unrouted keyed.Map[types.NamespacedName, int]         // how many Services of a sleeping cluster have clients that reach no gateway
	// leaving is held for reading while slices are changed, and for writing to stop that.
	leaving sync.RWMutex
	stopped bool
	// removed is how many slices Leave has removed, and drainBy when Drain ends at the latest.
	removed int
	drainBy time.Time
}

// New makes a controller.
func New(access Access, network Network) *Controller {
	a := &access
	routes := &router{Access: a, ports: network.Ports, gateway: network.Gateway, listen: network.Listen}
	return &Controller{
		Access: a, router: routes, starting: &starting{Access: a}, notifier: network.Notifier,
		handovers: &handovers{Access: a, dial: network.Dial},
		peers:     &peers{Access: a, ask: network.Ask, slices: routes, silent: make(chan event.GenericEvent)},
		hooks:     &hooks{unattended: &unattended{Access: a, budget: network.Budget, observer: network.Observer}, stopping: network.Stopping},
	}
}

// snapshot is what is known of a cluster.
type snapshot struct {
	name     types.NamespacedName
	cluster  *cnpgv1.Cluster // nil: it is gone
	view     plan.Cluster
	services []corev1.Service // of instances and of Poolers
	poolers  []cnpgv1.Pooler
	barred   []string // the names of the Poolers of which a Service cannot lead here
	// unroutable names the Services with clients that cannot be routed to the gateway, and says why; stranded are these
	// Services.
	unroutable []string
	stranded   []corev1.Service
	ambiguous  bool // whether other Clusters are a reason
	slices     []discoveryv1.EndpointSlice
	replicas   replicas
	state      plan.State
	nodeErr    error // why the nodes of a dozing cluster cannot be read
}

// Reconcile makes the plan of a cluster and carries it out. Nothing is written if everything is as planned.
func (c *Controller) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	c.leaving.RLock()
	defer c.leaving.RUnlock()
	if c.stopped {
		return ctrl.Result{}, nil
	}
	now := time.Now()
	seen, err := c.read(ctx, request.NamespacedName, now)
	if err != nil {
		c.passed(request.NamespacedName, err)
		return ctrl.Result{}, err
	}
	planned := plan.Decide(seen.state, now)
	again := &requeue{now: now}
	routed, unallocated, failed := c.lead(ctx, seen, planned, c.leads(seen.replicas), again)
	c.noteUnallocated(seen.name, unallocated, again)
	c.passed(seen.name, failed)
	c.noteUnrouted(seen, planned, routed)
	failed = errors.Join(failed, seen.nodeErr, c.observe(ctx, seen, again), c.reduce(ctx, seen, planned, routed, again))
	if planned.List || planned.Dial {
		inspected, err := c.inspect(ctx, seen, planned.Dial)
		if failed = errors.Join(failed, err); err == nil {
			seen.state.Inspected = &inspected
			planned = plan.Decide(seen.state, now)
		}
	}
	if planned.ListBackups {
		planned = c.listBackups(ctx, seen, planned, again)
	}
	again.at(planned.Next)
	if seen.ambiguous && seen.view.Listed { // changes of the other Clusters do not request this
		again.at(now.Add(time.Minute))
	}
	// These also run if a Service could not be led here: the clients of the other Services must not wait for it.
	followed, err := c.change(ctx, seen, planned.Changes, now)
	failed = errors.Join(failed, err, c.deletePods(ctx, seen, planned.Delete, now), c.wake(ctx, seen, planned.Wake, again), c.adopt(ctx, seen, planned.Adopt, now))
	// A failed write of a Pooler, a Backup or an Event must not block the handover.
	unwritten, told := c.tell(ctx, seen, append(planned.Events, followed...), now)
	aside := errors.Join(c.scale(ctx, seen, planned.Scale), c.makeBackup(ctx, seen, &planned), told)
	planned.Memory.Unwritten = unwritten
	c.remember(seen, planned.Memory)
	if failed != nil {
		return ctrl.Result{}, errors.Join(failed, aside)
	}
	if planned.Reason != plan.ReasonAnnounced {
		c.forget(seen.name)
	}
	if planned.Acknowledge != "" && (len(routed) != 0 || seen.view.Policy.Manual) && len(routed) == len(planned.Lead) {
		c.begin(ctx, seen, planned.Acknowledge, routed)
	}
	if err := errors.Join(c.confirmHolding(ctx, seen, planned.Confirm), aside); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again.after()}, nil
}

func (c *Controller) read(ctx context.Context, name types.NamespacedName, now time.Time) (*snapshot, error) {
	seen := &snapshot{name: name}
	cluster, err := c.Informers.Cluster(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	gone := err != nil
	if seen.poolers, err = c.Informers.Poolers(ctx, name); err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	if !gone {
		seen.cluster, seen.view = cluster, c.stopping.View(cluster, now)
		if pods, err = c.Informers.Pods(ctx, name); err != nil {
			return nil, err
		}
		if err := c.route(ctx, seen, pods); err != nil {
			return nil, err
		}
	}
	if seen.slices, err = c.Informers.Slices(ctx, name, append(stdslices.Clip(seen.services), seen.stranded...)); err != nil {
		return nil, err
	}
	seen.leadStranded()
	if seen.replicas, err = c.readReplicas(ctx); err != nil {
		return nil, err
	}
	seen.state, err = c.state(ctx, seen, pods)
	return seen, err
}

func (c *Controller) state(ctx context.Context, seen *snapshot, pods []corev1.Pod) (plan.State, error) {
	if seen.cluster == nil {
		return plan.State{Gone: true, Poolers: c.poolers(seen)}, nil
	}
	kind, err := events.KindOf(seen.cluster, c.Client)
	if err != nil {
		return plan.State{}, err
	}
	state := plan.State{
		Name: seen.name, UID: seen.cluster.UID, Resource: "clusters." + kind.Group, Cluster: seen.view,
		Annotations: seen.cluster.Annotations,
		Primary:     seen.cluster.Status.CurrentPrimary, Unroutable: seen.unroutable, HandoverWait: c.Settings.HandoverWait,
		Adopted: c.Settings.HibernatedBy,
		Memory:  c.memories.Get(seen.name), LedHere: stdslices.ContainsFunc(seen.slices, c.isOwn),
	}
	led := seen.led()
	for i := range seen.services {
		if service := &seen.services[i]; endpointslice.PoolerOf(service) == "" {
			state.Services = append(state.Services, seen.service(service, led))
		}
	}
	state.Poolers = c.poolers(seen)
	for i := range pods {
		if pod := &pods[i]; endpointslice.IsInstance(pod) && pod.DeletionTimestamp.IsZero() {
			state.Instances = append(state.Instances, plan.Pod{UID: pod.UID, Name: pod.Name, Ready: podReady(pod)})
		}
	}
	if seen.view.Dozing {
		state.Disrupted, seen.nodeErr = c.disruption(ctx, seen.name, pods)
	}
	var schedules []cnpgv1.ScheduledBackup
	if seen.view.Policy.OnBackup || seen.view.Policy.WakesByAge() {
		if schedules, err = c.Informers.Schedules(ctx, seen.name); err != nil {
			return plan.State{}, err
		}
	}
	state.Backups = plan.BackupsOf(seen.cluster, seen.view.Policy, schedules)
	if seen.view.HibernationOn || seen.view.Dozing {
		objects, err := c.Informers.Objects(ctx, seen.name)
		if err != nil {
			return plan.State{}, err
		}
		state.Pending = plan.PendingOf(objects)
		state.Slots = plan.SlotsOf(seen.cluster, schedules)
	}
	return state, nil
}

func (s *snapshot) service(service *corev1.Service, led map[types.UID]bool) plan.Service {
	return plan.Service{
		UID: service.UID, Name: service.Name, Led: led[service.UID],
		Ready:  endpointslice.ServesAll(service, s.slices) && s.isTold(service),
		Direct: len(endpointslice.Ready(service, s.slices)) != 0,
	}
}

func (c *Controller) remember(seen *snapshot, memory plan.Memory) {
	if seen.cluster != nil {
		c.memories.Set(seen.name, memory)
		return
	}
	c.memories.Delete(seen.name)
	c.fenced.Delete(seen.name)
	c.stopping.Forget(seen.name)
	c.Events.Forget(seen.name)
}

// led returns the Services that slices of ours lead to a gateway.
func (s *snapshot) led() map[types.UID]bool {
	led := map[types.UID]bool{}
	for i := range s.slices {
		if endpointslice.IsOurs(&s.slices[i]) {
			led[endpointslice.ServiceOf(&s.slices[i])] = true
		}
	}
	return led
}

// port is the port that slices of ours name for a Service, 0 if there are none.
func (s *snapshot) port(service types.UID) uint16 {
	for i := range s.slices {
		if slice := &s.slices[i]; endpointslice.IsOurs(slice) && endpointslice.ServiceOf(slice) == service {
			return endpointslice.PortOf(slice)
		}
	}
	return 0
}

// isTold reports whether the Service's ready endpoints prove that PostgreSQL serves. Those of a Pooler show only that
// PgBouncer accepts connections, so the Service to which it connects must have ready endpoints, too. With
// publishNotReadyAddresses, an endpoint is ready as soon as its pod has an address, so one of the cluster's other
// Services, if there is any, must have the same endpoint.
func (s *snapshot) isTold(service *corev1.Service) bool {
	if pooler := endpointslice.PoolerOf(service); pooler != "" {
		return s.servesPooler(pooler)
	}
	if !service.Spec.PublishNotReadyAddresses {
		return true
	}
	published, others := endpointslice.Ready(service, s.slices), 0
	for i := range s.services {
		other := &s.services[i]
		if other.Spec.PublishNotReadyAddresses || endpointslice.PoolerOf(other) != "" {
			continue
		}
		others++
		for _, address := range endpointslice.Ready(other, s.slices) {
			if stdslices.Contains(published, address) {
				return true
			}
		}
	}
	return others == 0
}

// requeue collects the earliest of several times at which to reconcile again.
type requeue struct{ now, next time.Time }

// at requests a reconciliation at that time; zero: none.
func (a *requeue) at(when time.Time) {
	if !when.IsZero() && (a.next.IsZero() || when.Before(a.next)) {
		a.next = when
	}
}

// after is how long until then; 0: never.
func (a *requeue) after() time.Duration {
	if a.next.IsZero() {
		return 0
	}
	return cmp.Or(max(a.next.Sub(a.now), 0), time.Millisecond)
}
