package wake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// WakeTimeout is how long a wake may take.
	WakeTimeout time.Duration
	// DrainTimeout is how long sessions are given when the plugin stops.
	DrainTimeout time.Duration
}

// Controller carries the plans of all clusters out.
type Controller struct {
	Settings Settings
	// Client writes; Informers are read; APIReader reads from the API server.
	Client    client.Client
	Informers informers.Reader
	APIReader client.Reader
	// Ports says which port belongs to which Service.
	Ports *ports.Store
	// Gateway serves the clients.
	Gateway Gateway
	// Listen opens a port, and Dial connects to a Service; they are the network's outside of tests.
	Listen func(ctx context.Context, port uint16) (net.Listener, error)
	Dial   func(ctx context.Context, address string) (net.Conn, error)
	// Ask asks the replica at an address whether it lives; the context bounds that.
	Ask func(ctx context.Context, replica netip.Addr) error
	// Notifier tells those who wait for a cluster that it has changed.
	Notifier *waker.Notifier
	// Stopping remembers which clusters may be stopping.
	Stopping *waker.Stopping
	// Events writes Events.
	Events *events.Writer
	// Observer is notified how the wakes for Backups end.
	Observer waker.Observer
	Logger   *slog.Logger

	firstPass   firstPass
	openPorts   openPorts
	silent      chan event.GenericEvent // the pods of replicas that count as dead
	heard       heard
	handover    handovers
	memories    sync.Map // what the last plan remembers, by cluster: [plan.Memory]
	made        sync.Map // when a slice was made that the informers have not told of yet, by name: time.Time
	condemned   sync.Map // the slices of other replicas that are to go, by UID: [condemned]
	unallocated sync.Map // the clusters without a port, that is said once of each
	backupWakes sync.Map // when a wake for a Backup began that has not ended yet, by cluster: time.Time
	unrouted    sync.Map // how many Services lead nowhere, by sleeping cluster: int
	unfenced    sync.Map // the specification with which a cluster was last seen without our fence, by cluster: [plan.Specification]
	// leaving is held for reading while slices are changed, and for writing to stop that.
	leaving sync.RWMutex
	stopped bool
	// removed is how many slices Leave has removed, and drainBy when Drain ends at the latest.
	removed int
	drainBy time.Time
}

// snapshot is what is known of a cluster.
type snapshot struct {
	name     types.NamespacedName
	cluster  *cnpgv1.Cluster // nil: it is gone
	view     plan.Cluster
	services []corev1.Service
	// unroutable names the Services of which not every client can be led here, and says why; stranded are they.
	unroutable []string
	stranded   []corev1.Service
	slices     []discoveryv1.EndpointSlice
	replicas   replicas
	state      plan.State
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
	again := newRequeue(now)
	routed, unallocated, failed := c.lead(ctx, seen, planned, again)
	c.noteUnallocated(seen.name, unallocated, again)
	c.passed(seen.name, failed)
	c.noteUnrouted(seen, planned, routed)
	c.observeBackupWake(seen, again)
	failed = errors.Join(failed, c.reduce(ctx, seen, planned, routed, again))
	if planned.List || planned.Dial {
		inspected, err := c.inspect(ctx, seen, planned.Dial)
		if failed = errors.Join(failed, err); err == nil {
			seen.state.Inspected = &inspected
			planned = plan.Decide(seen.state, now)
		}
	}
	again.at(planned.Next)
	// These also run if a Service could not be led here: the clients of the other Services must not wait for it.
	followed, err := c.change(ctx, seen, planned.Changes, now)
	failed = errors.Join(failed, err, c.deletePods(ctx, seen, planned.Delete, now))
	unwritten, told := c.tell(ctx, seen, append(planned.Events, followed...), now) // an Event that cannot be written keeps nothing from being done
	planned.Memory.Unwritten = unwritten
	c.remember(seen, planned.Memory)
	if failed != nil {
		return ctrl.Result{}, errors.Join(failed, told)
	}
	if planned.Reason != plan.ReasonAnnounced {
		c.handover.forget(seen.name)
	}
	if planned.Acknowledge != "" && len(routed) != 0 && len(routed) == len(planned.Lead) {
		c.beginHandover(ctx, seen, planned.Acknowledge, routed)
	}
	if err := errors.Join(c.confirmHolding(ctx, seen, planned.Confirm), told); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: again.after()}, nil
}

// passed notes whether what leads the cluster's clients here stands by now, for as long as that is waited for.
func (c *Controller) passed(cluster types.NamespacedName, err error) {
	if c.firstPass.note(cluster, err) {
		c.Logger.Warn("the replica becomes ready without leading a cluster's clients; it goes on trying", "namespace", cluster.Namespace, "cluster", cluster.Name, "error", err.Error())
	}
}

// read reads what is known of the cluster.
func (c *Controller) read(ctx context.Context, name types.NamespacedName, now time.Time) (*snapshot, error) {
	seen := &snapshot{name: name}
	cluster, err := c.Informers.Cluster(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	var pods []corev1.Pod
	if err == nil {
		seen.cluster, seen.view = cluster, c.Stopping.View(cluster, now)
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

// state is what the plan is made from.
func (c *Controller) state(ctx context.Context, seen *snapshot, pods []corev1.Pod) (plan.State, error) {
	if seen.cluster == nil {
		return plan.State{Gone: true}, nil
	}
	kind, err := events.KindOf(seen.cluster, c.Client)
	if err != nil {
		return plan.State{}, err
	}
	remembered, _ := c.memories.Load(seen.name)
	memory, _ := remembered.(plan.Memory)
	state := plan.State{
		Name: seen.name, Resource: "clusters." + kind.Group, Cluster: seen.view, Annotations: seen.cluster.Annotations,
		Primary: seen.cluster.Status.CurrentPrimary, Unroutable: seen.unroutable, HandoverWait: c.Settings.HandoverWait, Memory: memory,
		LedHere: stdslices.ContainsFunc(seen.slices, c.isOwn),
	}
	led := seen.led()
	for i := range seen.services {
		service := &seen.services[i]
		state.Services = append(state.Services, plan.Service{
			UID: service.UID, Name: service.Name, Led: led[service.UID], Ready: endpointslice.ServesAll(service, seen.slices) && seen.isTold(service),
			Direct: len(endpointslice.Ready(service, seen.slices)) != 0,
		})
	}
	for i := range pods {
		if pod := &pods[i]; endpointslice.IsInstance(pod) && pod.DeletionTimestamp.IsZero() {
			state.Instances = append(state.Instances, plan.Pod{UID: pod.UID, Name: pod.Name})
		}
	}
	if seen.view.Dozing {
		state.Disrupted, err = c.disruption(ctx, seen.name, pods)
	}
	return state, err
}

// remember keeps what a plan remembers for the next one.
func (c *Controller) remember(seen *snapshot, memory plan.Memory) {
	if seen.cluster != nil {
		c.memories.Store(seen.name, memory)
		return
	}
	c.memories.Delete(seen.name)
	c.unfenced.Delete(seen.name)
	c.Stopping.Forget(seen.name)
	c.Events.Forget(seen.name)
}

// lead opens a port for each planned Service and puts the slices in place that lead there. It returns those that are routed; while this
// replica does not serve, none is, and none whose family of addresses this replica has not. A Service for which that fails keeps no
// other from being led. unallocated says for which there is no port, or no file descriptor.
func (c *Controller) lead(ctx context.Context, seen *snapshot, planned plan.Plan, again *requeue) (routes []routed, unallocated, failed error) {
	var services []*corev1.Service
	for i := range seen.services {
		service := &seen.services[i]
		if !stdslices.Contains(planned.Lead, service.UID) || !c.leads(seen.replicas) && !c.hasSlice(seen, service.UID) {
			continue
		}
		if len(endpointslice.Wanted(service, seen.name.Name, c.Settings.Replica, 0)) == 0 {
			c.Logger.Warn("a Service cannot lead to the gateway: this pod has no address of its family", "namespace", seen.name.Namespace,
				"cluster", seen.name.Name, "service", service.Name, "families", service.Spec.IPFamilies, "addresses", c.Settings.Replica.Addresses)
			continue
		}
		services = append(services, service)
	}
	unallocated, failed = c.openListeners(ctx, seen, services, again.now)
	for _, service := range services {
		openPort := c.openPorts.of(seen.name, service.UID)
		if openPort == nil {
			continue
		}
		wanted := endpointslice.Wanted(service, seen.name.Name, c.Settings.Replica, openPort.port)
		if planned.Reason == plan.ReasonWaking && seen.isTold(service) { // who is served need not come here because others are not, or never will be
			wanted = stdslices.DeleteFunc(wanted, func(s discoveryv1.EndpointSlice) bool {
				return endpointslice.Serves(service, s.AddressType, seen.slices)
			})
		}
		var missing error
		for i := range wanted {
			missing = errors.Join(missing, c.ensureSlice(ctx, seen, &wanted[i], again))
		}
		if failed = errors.Join(failed, missing); missing == nil {
			routes = append(routes, routed{service: service, openPort: openPort, wanted: wanted})
		}
	}
	return routes, unallocated, failed
}

// unallocatedFor is the retry interval for a cluster with a Service that got no port. Any change to it also triggers a retry.
const unallocatedFor = time.Minute

// noteUnallocated says once of a cluster that there is no port, or no file descriptor, for a Service of it. That is not retried at
// once, and must not hold up other clusters. A cluster that was to sleep stays awake, and one that sleeps can be woken by hand.
func (c *Controller) noteUnallocated(cluster types.NamespacedName, err error, again *requeue) {
	if err == nil {
		c.unallocated.Delete(cluster)
		return
	}
	again.at(again.now.Add(unallocatedFor))
	if _, said := c.unallocated.Swap(cluster, true); !said {
		c.Logger.Warn("a cluster cannot be woken by connections, and stays awake if it is", "namespace", cluster.Namespace, "cluster", cluster.Name, "error", err.Error())
	}
}

// routed is a Service that leads to this replica.
type routed struct {
	service  *corev1.Service
	openPort *openPort
	wanted   []discoveryv1.EndpointSlice
}

// hasSlice reports whether a slice of this replica leads here already, as after a restart of its container.
func (c *Controller) hasSlice(seen *snapshot, service types.UID) bool {
	return stdslices.ContainsFunc(seen.slices, func(slice discoveryv1.EndpointSlice) bool {
		return c.isOwn(slice) && endpointslice.ServiceOf(&slice) == service
	})
}

// isOwn reports whether the slice leads to this replica.
func (c *Controller) isOwn(slice discoveryv1.EndpointSlice) bool {
	return endpointslice.IsOurs(&slice) && endpointslice.ReplicaOf(&slice) == c.Settings.Replica.UID
}

// openListeners opens the listeners of those Services that have none yet. unallocated is about those for which there is no port, or no
// file descriptor.
func (c *Controller) openListeners(ctx context.Context, seen *snapshot, services []*corev1.Service, now time.Time) (unallocated, failed error) {
	var owners []ports.Request
	for _, service := range services {
		if !c.openPorts.reopen(seen.name, service.UID) {
			owner := ports.Owner{UID: service.UID, Namespace: service.Namespace, Name: service.Name}
			owners = append(owners, ports.Request{Owner: owner, Led: seen.port(service.UID), First: isFirst(service, seen.name.Name)})
		}
	}
	if len(owners) == 0 {
		return nil, nil
	}
	assigned, err := c.Ports.Assign(ctx, owners, now)
	if err != nil {
		return nil, err
	}
	for _, owner := range owners {
		switch err := c.openListener(ctx, seen.name, owner.Owner, assigned); {
		case errors.Is(err, ports.ErrNoPort), errors.Is(err, gateway.ErrNoDescriptor):
			unallocated = errors.Join(unallocated, err)
		default:
			failed = errors.Join(failed, err)
		}
	}
	return unallocated, failed
}

// openListener opens the listener of a Service on the port that it was assigned.
func (c *Controller) openListener(ctx context.Context, cluster types.NamespacedName, owner ports.Owner, assigned map[types.UID]uint16) error {
	port, ok := assigned[owner.UID]
	if !ok {
		return fmt.Errorf("assign a port to Service %s/%s: %w", owner.Namespace, owner.Name, ports.ErrNoPort)
	}
	if another, err := c.Ports.BelongsToAnother(ctx, port, owner.UID); err != nil || another {
		return errors.Join(fmt.Errorf("listen on port %d for Service %s/%s: the ledger gives it to another", port, owner.Namespace, owner.Name), err)
	}
	listener, err := c.Listen(ctx, port)
	if err != nil {
		return fmt.Errorf("listen on port %d for Service %s/%s: %w", port, owner.Namespace, owner.Name, err)
	}
	opened := &openPort{port: port, acceptNotifier: newAcceptNotifier(listener)}
	of := gateway.Service{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID, Cluster: cluster.Name}
	c.Gateway.Open(of, opened.acceptNotifier)
	c.openPorts.add(cluster, owner.UID, opened)
	c.Logger.Info("a Service leads to the gateway", "namespace", owner.Namespace, "cluster", cluster.Name, "service", owner.Name, "port", port)
	return nil
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

// isTold reports whether the Service's own endpoints say whether PostgreSQL serves. One that publishes addresses that are not ready has
// them as soon as a pod has an address: then an endpoint of another of the cluster's Services says it.
func (s *snapshot) isTold(service *corev1.Service) bool {
	if !service.Spec.PublishNotReadyAddresses {
		return true
	}
	published, others := endpointslice.Ready(service, s.slices), 0
	for i := range s.services {
		other := &s.services[i]
		if other.Spec.PublishNotReadyAddresses {
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

// requeue is when to look again: the earliest of several times.
type requeue struct{ now, next time.Time }

func newRequeue(now time.Time) *requeue { return &requeue{now: now} }

// at asks for a look at that time; zero: none.
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
