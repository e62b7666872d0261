// Package plan decides which Services of a cluster lead to the gateway. It reads no clock and does no input or output.
//
// They do while an instance announces that it is about to put the cluster to sleep, while the cluster sleeps because this
// project put it to sleep, and after a wake until the Service has a ready endpoint of its own: a Service that clients use
// must never be without any. In every other case nothing of ours is between a client and PostgreSQL.
package plan

import (
	"cmp"
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
	// ReasonWaking says that it was woken, and that a Service has no ready endpoint of its own yet.
	ReasonWaking Reason = "waking"
	// ReasonAwake says that it is awake.
	ReasonAwake Reason = "awake"
	// ReasonGone says that the Cluster is being deleted.
	ReasonGone Reason = "gone"
	// ReasonNotListed says that the Cluster does not list the plugin, or has turned it off.
	ReasonNotListed Reason = "not_listed"
	// ReasonInvalid says that an annotation is not understood.
	ReasonInvalid Reason = "invalid_annotation"
	// ReasonDisabled says that the feature is off for the cluster.
	ReasonDisabled Reason = "disabled"
	// ReasonManual says that only people wake it.
	ReasonManual Reason = "manual"
	// ReasonByHand says that a person put it to sleep.
	ReasonByHand Reason = "by_hand"
	// ReasonMaintenance says that a wake might have the operator delete volumes. Clients of a sleeping cluster are routed to the
	// gateway all the same: there they are told.
	ReasonMaintenance Reason = "maintenance"
)

// Service is what a decision needs to know of a Service.
type Service struct {
	UID types.UID
	// Led says that an EndpointSlice of ours exists, Ready that the Service has a ready endpoint of its own.
	Led, Ready bool
}

// StandInFor is how long the gateway stands in for a woken cluster's Services that do not get ready. The longest time that a client
// may be given is as long: while one waits, nobody who comes is refused.
const StandInFor = time.Hour

// State is what a decision is made from.
type State struct {
	Cluster  Cluster
	Services []Service
	// Unroutable says that clients of a Service could not be routed to the gateway: the cluster must not sleep.
	Unroutable bool
	// WakingUntil is how long the gateway stands in for Services of a woken cluster that do not get ready.
	WakingUntil time.Time
}

// Plan is what the gateway is to do.
type Plan struct {
	// Lead are the Services that are to lead to the gateway, and no others.
	Lead []types.UID
	// Reason says why.
	Reason Reason
	// Acknowledge is the announcement that is to be acknowledged once they do; empty: none, or it has been.
	Acknowledge string
	// Unwakeable says that the cluster sleeps because of this project and that no connection wakes it any more.
	Unwakeable bool
	// Next is when to look again without anything having changed; zero: never.
	Next time.Time
}

// Decide makes the plan.
func Decide(state State, now time.Time) Plan {
	cluster := state.Cluster
	obstacle := cluster.Obstacle()
	if obstacle != "" && obstacle != ReasonMaintenance {
		unwakeable := cluster.Switched && cluster.Ours && obstacle != ReasonGone
		plan := Plan{Reason: obstacle, Unwakeable: unwakeable}
		if obstacle == ReasonInvalid {
			plan.Next = cluster.UnderstoodFrom
		}
		return plan
	}
	if cluster.Switched {
		return Plan{Lead: all(state.Services), Reason: cmp.Or(obstacle, ReasonAsleep)}
	}
	if announcement, err := contract.ParseAnnouncement(cluster.Announced); err == nil && obstacle == "" {
		live, change := announcement.Valid(now)
		switch {
		case !live:
			return Plan{Reason: ReasonAwake, Next: change}
		case cluster.Acknowledged == cluster.Announced || state.Unroutable:
			return Plan{Lead: all(state.Services), Reason: ReasonAnnounced, Next: change}
		default:
			return Plan{Lead: all(state.Services), Reason: ReasonAnnounced, Next: change, Acknowledge: cluster.Announced}
		}
	}
	plan := Plan{Reason: ReasonAwake}
	for _, service := range state.Services {
		if service.Led && !service.Ready && now.Before(state.WakingUntil) {
			plan.Lead = append(plan.Lead, service.UID)
			plan.Reason, plan.Next = ReasonWaking, state.WakingUntil
		}
	}
	return plan
}

func all(services []Service) []types.UID {
	uids := make([]types.UID, 0, len(services))
	for _, service := range services {
		uids = append(uids, service.UID)
	}
	return uids
}
