package wake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/keyed"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
)

// router opens the ports of Services, and puts and removes the slices that lead there.
type router struct {
	*Access
	ports   *ports.Store
	gateway Gateway
	listen  func(ctx context.Context, port uint16) (net.Listener, error)

	openPorts   openPorts
	made        keyed.Map[types.NamespacedName, time.Time] // when a slice was made that the informers have not told of yet
	condemned   keyed.Map[types.UID, condemned]            // the slices of other replicas that are to go
	unallocated keyed.Map[types.NamespacedName, bool]      // the clusters without a port, that is said once of each
}

// routed is a Service that leads to this replica.
type routed struct {
	service  *corev1.Service
	openPort *openPort
	wanted   []discoveryv1.EndpointSlice
}

// unallocatedFor is the retry interval for a cluster with a Service that got no port. Any change to it also triggers a
// retry.
const unallocatedFor = time.Minute

// lead opens a port for each planned Service and creates the slices that route to it. It returns the Services that are
// routed. If leads is false, only those that this replica routes already remain; those of an address family that it
// lacks are left out. A Service that fails does not stop the others. unallocated says which have no port, or no file
// descriptor.
func (r *router) lead(ctx context.Context, seen *snapshot, planned plan.Plan, leads bool, again *requeue) (routes []routed, unallocated, failed error) {
	var services []*corev1.Service
	for i := range seen.services {
		service := &seen.services[i]
		if !slices.Contains(planned.Lead, service.UID) || !leads && !r.hasSlice(seen, service.UID) {
			continue
		}
		if len(endpointslice.Wanted(service, seen.name.Name, r.Settings.Replica, 0)) == 0 {
			r.Logger.Warn("a Service cannot lead to the gateway: this pod has no address of its family", "namespace", seen.name.Namespace,
				"cluster", seen.name.Name, "service", service.Name, "families", service.Spec.IPFamilies, "addresses", r.Settings.Replica.Addresses)
			continue
		}
		services = append(services, service)
	}
	unallocated, failed = r.openListeners(ctx, seen, services, again.now)
	for _, service := range services {
		openPort := r.openPorts.Get(seen.name)[service.UID]
		if openPort == nil {
			continue
		}
		wanted := endpointslice.Wanted(service, seen.name.Name, r.Settings.Replica, openPort.port)
		if planned.Reason == plan.ReasonWaking && seen.isTold(service) { // a family that is served does not need the gateway, even if another never will be
			wanted = slices.DeleteFunc(wanted, func(s discoveryv1.EndpointSlice) bool {
				return endpointslice.Serves(service, s.AddressType, seen.slices)
			})
		}
		var missing error
		for i := range wanted {
			missing = errors.Join(missing, r.ensureSlice(ctx, seen, &wanted[i], again))
		}
		if failed = errors.Join(failed, missing); missing == nil {
			routes = append(routes, routed{service: service, openPort: openPort, wanted: wanted})
		}
	}
	return routes, unallocated, failed
}

// noteUnallocated says once of a cluster that there is no port, or no file descriptor, for a Service of it. That is not
// retried at once, and must not hold up other clusters. A cluster that was to sleep stays awake, and one that sleeps
// can be woken by hand.
func (r *router) noteUnallocated(cluster types.NamespacedName, err error, again *requeue) {
	if err == nil {
		r.unallocated.Delete(cluster)
		return
	}
	again.at(again.now.Add(unallocatedFor))
	said := r.unallocated.Get(cluster)
	if r.unallocated.Set(cluster, true); !said {
		r.Logger.Warn("the gateway cannot serve a Service of a cluster; connections through it do not wake the cluster, which does not fall asleep", "namespace", cluster.Namespace, "cluster", cluster.Name, "error", err.Error())
	}
}

// hasSlice reports whether a slice of this replica leads here already, as after a restart of its container.
func (r *router) hasSlice(seen *snapshot, service types.UID) bool {
	return slices.ContainsFunc(seen.slices, func(slice discoveryv1.EndpointSlice) bool {
		return r.isOwn(slice) && endpointslice.ServiceOf(&slice) == service
	})
}

func (a *Access) isOwn(slice discoveryv1.EndpointSlice) bool {
	return endpointslice.IsOurs(&slice) && endpointslice.ReplicaOf(&slice) == a.Settings.Replica.UID
}

// openListeners opens the listeners of those Services that have none yet. unallocated is about those for which there is
// no port, or no file descriptor.
func (r *router) openListeners(ctx context.Context, seen *snapshot, services []*corev1.Service, now time.Time) (unallocated, failed error) {
	var owners []ports.Request
	for _, service := range services {
		if open := r.openPorts.Get(seen.name)[service.UID]; open != nil {
			open.closing = time.Time{} // if it was about to be closed
		} else {
			owner := ports.Owner{UID: service.UID, Namespace: service.Namespace, Name: service.Name}
			owners = append(owners, ports.Request{Owner: owner, Led: seen.port(service.UID), First: isFirst(service, seen.name.Name)})
		}
	}
	if len(owners) == 0 {
		return nil, nil
	}
	assigned, err := r.ports.Assign(ctx, owners, now)
	if err != nil {
		return nil, err
	}
	for _, owner := range owners {
		switch err := r.openListener(ctx, seen.name, owner.Owner, assigned); {
		case errors.Is(err, ports.ErrNoPort), errors.Is(err, gateway.ErrNoDescriptor):
			unallocated = errors.Join(unallocated, err)
		default:
			failed = errors.Join(failed, err)
		}
	}
	return unallocated, failed
}

func (r *router) openListener(ctx context.Context, cluster types.NamespacedName, owner ports.Owner, assigned map[types.UID]uint16) error {
	port, ok := assigned[owner.UID]
	if !ok {
		return fmt.Errorf("assign a port to Service %s/%s: %w", owner.Namespace, owner.Name, ports.ErrNoPort)
	}
	if another, err := r.ports.BelongsToAnother(ctx, port, owner.UID); err != nil || another {
		return errors.Join(fmt.Errorf("listen on port %d for Service %s/%s: the ledger gives it to another", port, owner.Namespace, owner.Name), err)
	}
	listener, err := r.listen(ctx, port)
	if err != nil {
		return fmt.Errorf("listen on port %d for Service %s/%s: %w", port, owner.Namespace, owner.Name, err)
	}
	opened := &openPort{port: port, acceptNotifier: &acceptNotifier{Listener: listener}}
	of := gateway.Service{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID, Cluster: cluster.Name}
	r.gateway.Open(of, opened.acceptNotifier)
	r.openPorts.add(cluster, owner.UID, opened)
	r.Logger.Info("a Service leads to the gateway", "namespace", owner.Namespace, "cluster", cluster.Name, "service", owner.Name, "port", port)
	return nil
}

// toldWithin is how long the informers may take to show a created slice before it is created again.
const toldWithin = 2 * time.Second

// ensureSlice creates or corrects a slice. It writes nothing if the slice is as wanted.
func (r *router) ensureSlice(ctx context.Context, seen *snapshot, want *discoveryv1.EndpointSlice, again *requeue) error {
	name := types.NamespacedName{Namespace: want.Namespace, Name: want.Name}
	for i := range seen.slices {
		if have := &seen.slices[i]; have.Name == want.Name {
			r.made.Delete(name)
			if endpointslice.Same(have, want) {
				return nil
			}
			have = have.DeepCopy()
			endpointslice.Update(have, want)
			if err := r.Client.Update(ctx, have); err != nil {
				return fmt.Errorf("update EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
			}
			return nil
		}
	}
	if until := r.made.Get(name).Add(toldWithin); again.now.Before(until) {
		again.at(until)
		return nil
	}
	r.made.Set(name, again.now)
	// The slice may already exist: informers lag behind, and will show it later.
	err := r.Client.Create(ctx, want.DeepCopy())
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		r.made.Delete(name)
		return fmt.Errorf("create EndpointSlice %s/%s: %w", want.Namespace, want.Name, err)
	}
	return nil
}

// reduce deletes this replica's unplanned slices and, a moment later, closes their ports. It also deletes slices that
// other replicas must not leave behind. A slice whose port belongs to another Service routes clients to another's
// database, so it is deleted even without a replacement.
func (r *router) reduce(ctx context.Context, seen *snapshot, planned plan.Plan, routes []routed, again *requeue) error {
	wanted, led := map[string]bool{}, map[types.UID]bool{}
	for _, l := range routes {
		led[l.service.UID] = true
		for i := range l.wanted {
			wanted[l.wanted[i].Name] = true
		}
	}
	for i := range seen.slices {
		slice := &seen.slices[i]
		if !endpointslice.IsOurs(slice) || wanted[slice.Name] {
			continue
		}
		service := endpointslice.ServiceOf(slice)
		misleads, err := r.ports.BelongsToAnother(ctx, endpointslice.PortOf(slice), service)
		if err != nil {
			return err
		}
		switch own := endpointslice.ReplicaOf(slice) == r.Settings.Replica.UID; {
		case own && slices.Contains(planned.Lead, service) && !led[service] && !misleads:
			continue // planned, but its port could not be opened: the slices stay until it can
		case own:
		case !seen.replicas.ready(r.Settings.Replica.UID):
			continue // a replica that is not ready does not judge others
		case !misleads:
			if gone, err := r.mayGo(ctx, seen, planned, slice, again); err != nil {
				return err
			} else if !gone {
				continue
			}
		}
		if err := r.remove(ctx, slice); err != nil {
			return err
		}
	}
	closed, next := r.openPorts.close(seen.name, planned.Lead, max(drainDelay, r.Settings.HandoverWait), again.now)
	again.at(next)
	for _, uid := range closed {
		r.gateway.Close(uid)
		r.Logger.Info("a Service no longer leads to the gateway",
			"namespace", seen.name.Namespace, "cluster", seen.name.Name, "uid", uid)
	}
	return nil
}

// unwantedFor is how long a slice must be unplanned before other replicas delete it too. The replica that created it
// does so at once, unless it fails or its informers lag behind.
const unwantedFor = 30 * time.Second

// condemned is another replica's slice that is to go if its Service can do without it.
type condemned struct {
	from   time.Time
	silent types.UID // the replica, if it was taken for dead; otherwise no plan wants the slice
}

// mayGo reports whether another replica's slice may be removed.
func (r *router) mayGo(ctx context.Context, seen *snapshot, planned plan.Plan, slice *discoveryv1.EndpointSlice, again *requeue) (bool, error) {
	dead, ask := seen.replicas.dead(slice, again.now)
	if dead {
		return true, nil
	}
	again.at(ask)
	isLed := slices.Contains(planned.Lead, endpointslice.ServiceOf(slice))
	var of condemned
	r.condemned.Change(slice.UID, func(known *condemned) (keep bool) {
		if !isLed && *known == (condemned{}) {
			known.from = again.now.Add(unwantedFor)
		}
		of = *known
		return !isLed || known.silent != ""
	})
	switch {
	case of.silent != "":
		return r.isSpare(seen, planned, slice), nil
	case isLed:
		return false, nil
	case again.now.Before(of.from):
		again.at(of.from)
		return false, nil
	}
	return r.isCurrent(ctx, seen)
}

// isCurrent reports whether the API server has the Cluster that was read: a replica whose own informers are late must
// not judge others.
func (r *router) isCurrent(ctx context.Context, seen *snapshot) (bool, error) {
	var live cnpgv1.Cluster
	err := r.APIReader.Get(ctx, seen.name, &live)
	switch {
	case apierrors.IsNotFound(err):
		return seen.cluster == nil, nil
	case err != nil:
		return false, fmt.Errorf("read Cluster %s: %w", seen.name, err)
	}
	return seen.cluster != nil && seen.cluster.ResourceVersion == live.ResourceVersion, nil
}

// remove deletes a slice if it is still the one that was read.
func (r *router) remove(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	err := r.Client.Delete(ctx, &discoveryv1.EndpointSlice{ObjectMeta: slice.ObjectMeta}, client.Preconditions{UID: &slice.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete EndpointSlice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	r.condemned.Delete(slice.UID)
	return nil
}
