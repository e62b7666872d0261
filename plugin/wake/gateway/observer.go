package gateway

import (
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// Observer learns what happens, for metrics. Its methods are called by many goroutines at once and must not block.
type Observer interface {
	// Ignored counts a connection that is no client and so wakes nothing. The reason is one of IgnoredReasons.
	Ignored(service Service, reason string)
	// Refused counts a client that got no session.
	Refused(service Service, reason RefusedReason)
	// Held and Spliced tell a change, 1 or -1, of how many clients wait and how many sessions pass through.
	Held(service Service, change int)
	Spliced(service Service, change int)
	// Took tells how long a phase of a client that got its session took.
	Took(service Service, phase Phase, duration time.Duration)
}

const (
	// ignoredCancel is a CancelRequest while no instance runs that it could be for.
	ignoredCancel = "cancel"
	// ignoredClosed is a connection that had not said what it is when the gateway ended.
	ignoredClosed = "closed"
)

// IgnoredReasons is the closed list of why a connection wakes nothing: what is wrong with its startup packet, the backend's
// refusals, a CancelRequest for a sleeping cluster, and the gateway's own end.
func IgnoredReasons() []string {
	reasons := []string{ignoredCancel, ignoredClosed}
	for _, reason := range startup.Reasons() {
		reasons = append(reasons, string(reason))
	}
	for _, refusal := range Refusals() {
		reasons = append(reasons, string(refusal))
	}
	return reasons
}

// RefusedReason says why a client got no session. The list is closed: it labels metrics.
type RefusedReason string

// The reasons.
const (
	// RefusedOpening is a connection that gave way to another before it had said what it is.
	RefusedStartup RefusedReason = "too_many_starting"
	// RefusedHeld is a client that got no slot among those that wait, or gave way to another.
	RefusedHeld RefusedReason = "too_many_held"
	// RefusedSpliced is a client whose cluster is awake, and for whose session there was no slot.
	RefusedSpliced      RefusedReason = "too_many_spliced"
	RefusedReplication  RefusedReason = "replication"
	RefusedAsleepByHand RefusedReason = "asleep_by_hand"
	RefusedMaintenance  RefusedReason = "maintenance"
	RefusedReconnect    RefusedReason = "reconnect"
	RefusedTimeout      RefusedReason = "timeout"
	// RefusedUnreachable is an instance that was said to accept sessions and did not, several times.
	RefusedUnreachable RefusedReason = "unreachable"
	// RefusedNoTLS is an instance that serves no TLS, which the client had been promised.
	RefusedNoTLS RefusedReason = "no_tls"
	// RefusedClosed is a gateway that has waited as long as it may when it stops.
	RefusedClosed RefusedReason = "closed"
	// RefusedHungUp is a client that went away while it was held.
	RefusedHungUp RefusedReason = "hung_up"
	// RefusedAhead is a client that sent more than the limit while it was held.
	RefusedAhead RefusedReason = "sent_ahead"
	// RefusedPanicked is a connection that met a mistake of the gateway's own.
	RefusedPanicked RefusedReason = "panic"
	// RefusedFailed is any other error of the backend.
	RefusedFailed RefusedReason = "failed"
)

// RefusedReasons is the closed list.
func RefusedReasons() []RefusedReason {
	return []RefusedReason{
		RefusedStartup, RefusedHeld, RefusedSpliced, RefusedReplication, RefusedAsleepByHand, RefusedMaintenance, RefusedReconnect,
		RefusedTimeout, RefusedUnreachable, RefusedNoTLS, RefusedClosed, RefusedHungUp, RefusedAhead, RefusedPanicked, RefusedFailed,
	}
}

// Phase is a part of the time that a client waits. The list is closed: it labels metrics.
type Phase string

// The phases, in their order.
const (
	// PhaseStartup is from the connection to the end of the startup packet: it is the client's own time.
	PhaseStartup Phase = "startup"
	// PhaseResolve is what the backend took, so also the wake.
	PhaseResolve Phase = "resolve"
	// PhaseConnect is from the backend's answer until the instance has taken the startup packet.
	PhaseConnect Phase = "connect"
)

// Phases is the closed list.
func Phases() []Phase { return []Phase{PhaseStartup, PhaseResolve, PhaseConnect} }
