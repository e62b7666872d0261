package plan

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Reason says why the Services of a cluster lead to the gateway, or do not. The list is closed.
type Reason string

// The reasons.
const (
	// ReasonAnnounced says that the cluster is about to sleep.
	ReasonAnnounced Reason = "announced"
	// ReasonAsleep says that it sleeps and a connection wakes it.
	ReasonAsleep Reason = "asleep"
	// ReasonDozing says that PostgreSQL is stopped, or may still stop, in a pod that is kept.
	ReasonDozing Reason = "dozing"
	// ReasonWaking says that it was woken, and that a Service has no ready endpoint of its own yet.
	ReasonWaking Reason = "waking"
	// ReasonSettling says that it was woken from a doze, and that its Services' own endpoints may become unready once
	// more.
	ReasonSettling Reason = "settling"
	// ReasonAwake says that it is awake.
	ReasonAwake Reason = "awake"
	// ReasonGone says that the Cluster is being deleted.
	ReasonGone Reason = "gone"
	// ReasonNotListed says that the Cluster does not list the plugin, or has turned it off.
	ReasonNotListed Reason = "not_listed"
	// ReasonInvalid says that an annotation is invalid.
	ReasonInvalid Reason = "invalid_annotation"
	// ReasonDisabled says that the feature is off for the cluster.
	ReasonDisabled Reason = "disabled"
	// ReasonManual says that connections do not wake it.
	ReasonManual Reason = "manual"
	// ReasonByHand says that a person put it to sleep.
	ReasonByHand Reason = "by_hand"
	// ReasonMaintenance says that a wake might have the operator delete volumes. Clients of a sleeping cluster are
	// routed to the gateway all the same: there they are told.
	ReasonMaintenance Reason = "maintenance"
)

// Service is what a decision needs to know of a Service.
type Service struct {
	UID  types.UID
	Name string
	// Led says that an EndpointSlice of ours exists, Ready that the Service has a ready endpoint of its own, of each
	// family of addresses that is led. Direct says that it has one at all, so that clients may bypass the gateway.
	Led, Ready, Direct bool
	// ReadySince is since when it has been ready without a break after a doze, or an attempt at one; zero if it is not.
	ReadySince time.Time
}

// StandInFor is how long the gateway stands in for a woken cluster's Services that do not get ready. It is also the
// maximum of WAKE_TIMEOUT, so that no client is refused while another one still waits.
const StandInFor = time.Hour

// settleTime is how long a Service must have been ready after a doze, or an attempt at one. The readiness probe of
// PostgreSQL's container may have failed twice by then, and a third failure in a row would make the pod not ready
// (1.30: pkg/specs/pods.go: every 10 s, with a timeout of 5 s, three times). In 16 s the probe runs at least once, and
// one success resets the count.
const settleTime = 16 * time.Second

// routing is what decides which Services lead to the gateway.
type routing struct {
	Cluster  Cluster
	Services []Service
	// Unroutable says that clients of a Service could not be routed to the gateway: the cluster must not sleep.
	Unroutable bool
	// WakingUntil is how long the gateway stands in for Services of a woken cluster that do not get ready.
	WakingUntil time.Time
	// Dozed says that the cluster dozed or was about to, and that a Service still leads to the gateway since then.
	Dozed bool
}

// Routes are the Services that are to lead to the gateway, and what follows for the announcement of a sleep.
type Routes struct {
	// Lead are the Services that are to lead to the gateway, and no others.
	Lead []types.UID
	// Reason says why.
	Reason Reason
	// Acknowledge is the announcement that is to be acknowledged once they do; empty: none, or it has been.
	Acknowledge string
	// Hold is the announcement of a doze that is to be confirmed a second time, because every client is now routed to
	// the gateway; empty: none, or it has been.
	Hold string
	// Revoke says that the acknowledgement is to be removed, because the announcement's deadline has passed. A request
	// to turn hibernation on that is still on its way then fails, so that the Services can lead to the instances alone
	// again.
	Revoke bool
	// Unwakeable says that the cluster sleeps because of this project and that no connection wakes it any more.
	Unwakeable bool
	// Next is when to look again without anything having changed; zero: never.
	Next time.Time
}

// routes decides which Services lead to the gateway.
func (state routing) routes(now time.Time) Routes {
	cluster := state.Cluster
	obstacle := cluster.Obstacle()
	disarmed := obstacle != "" && obstacle != ReasonMaintenance
	switch {
	case obstacle == ReasonGone:
		return Routes{Reason: obstacle}
	case cluster.Dozing || cluster.MayStillStop:
		return Routes{Lead: all(state.Services), Reason: ReasonDozing}
	case cluster.HibernationOn && disarmed:
		return disarm(cluster, obstacle)
	case cluster.HibernationOn:
		return Routes{Lead: all(state.Services), Reason: cmp.Or(obstacle, ReasonAsleep)}
	}
	var next time.Time
	// A cluster that no client wakes needs the plugin as well, unless only people wake it. The acknowledgement shows
	// that the plugin is there.
	woken := obstacle == "" || obstacle == ReasonManual && !cluster.Policy.ByPeopleOnly()
	if announcement, err := contract.ParseAnnouncement(cluster.Announced); err == nil && woken {
		live, change := announcement.Valid(now)
		switch {
		case obstacle == ReasonManual && live && !slices.ContainsFunc(state.Services, func(s Service) bool { return s.Led }):
			routes := Routes{Reason: ReasonAnnounced, Next: change}
			if cluster.Acknowledged != cluster.Announced {
				routes.Acknowledge = cluster.Announced
			}
			return routes
		case obstacle == ReasonManual: // none is led away before its own endpoints are ready
		case live:
			routes := Routes{Lead: all(state.Services), Reason: ReasonAnnounced, Next: change}
			routes.confirm(state, announcement)
			return routes
		case change.IsZero() && !announcement.Doze && cluster.Acknowledged == cluster.Announced:
			return Routes{Lead: all(state.Services), Reason: ReasonAnnounced, Revoke: true}
		case !announcement.Doze && !state.Dozed:
			return Routes{Reason: ReasonAwake, Next: change}
		}
		next = change // for a doze the pod may have left its Services by now
	}
	routes := standIn(state, now)
	switch {
	case len(routes.Lead) == 0 && disarmed:
		routes = disarm(cluster, obstacle)
		routes.Next = cmp.Or(routes.Next, next)
	case routes.Next.IsZero():
		routes.Next = next
	}
	return routes
}

// disarm are the routes of a cluster that no connection is to wake.
func disarm(cluster Cluster, obstacle Reason) Routes {
	routes := Routes{Reason: obstacle, Unwakeable: cluster.HibernationOn && cluster.OwnsHibernation}
	if obstacle == ReasonInvalid {
		routes.Next = cluster.UnderstoodFrom
	}
	return routes
}

// confirm says which confirmation of the announcement is due.
func (r *Routes) confirm(state routing, announcement contract.Announcement) {
	cluster := state.Cluster
	switch bypasses := func(s Service) bool { return s.Direct || !s.Led }; {
	case state.Unroutable:
	case cluster.Acknowledged != cluster.Announced:
		r.Acknowledge = cluster.Announced
	case announcement.Doze && !cluster.Holding && !slices.ContainsFunc(state.Services, bypasses):
		r.Hold = cluster.Announced
	}
}

// standIn are the routes of an awake cluster: a Service that leads to the gateway does so until it is ready, and after
// a doze until it has been ready for settleTime.
func standIn(state routing, now time.Time) Routes {
	routes := Routes{Reason: ReasonAwake}
	for _, service := range state.Services {
		settled := service.ReadySince.Add(settleTime)
		switch {
		case !service.Led:
		case !service.Ready && now.Before(state.WakingUntil):
			routes.lead(service.UID, ReasonWaking, state.WakingUntil)
		case service.Ready && state.Dozed && now.Before(settled):
			routes.lead(service.UID, ReasonSettling, settled)
		}
	}
	return routes
}

// lead adds a Service until then. ReasonSettling takes precedence over ReasonWaking, with which a Service loses its
// slices of families that are ready.
func (r *Routes) lead(uid types.UID, reason Reason, until time.Time) {
	r.Lead = append(r.Lead, uid)
	if r.Reason != ReasonSettling {
		r.Reason = reason
	}
	if r.Next.IsZero() || until.Before(r.Next) {
		r.Next = until
	}
}

func all(services []Service) []types.UID {
	uids := make([]types.UID, 0, len(services))
	for _, service := range services {
		uids = append(uids, service.UID)
	}
	return uids
}
