package gateway

import (
	"time"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/startup"
)

// Observer is notified of what happens, for metrics. Its methods are called concurrently and must not block.
type Observer interface {
	// Ignored counts a connection that is not a client's and wakes nothing. The reason is one of IgnoredReasons.
	Ignored(service Service, reason string)
	// Refused counts a client that got no session.
	Refused(service Service, reason RefusedReason)
	// Held and Spliced report a change, 1 or -1, in the number of waiting clients and of sessions.
	Held(service Service, change int)
	Spliced(service Service, change int)
	// Took reports how long a phase took, for a client that got its session.
	Took(service Service, phase Phase, duration time.Duration)
}

const (
	// ignoredCancel is a CancelRequest while no instance is running.
	ignoredCancel = "cancel"
	// ignoredClosed is a connection whose startup packet was not complete when the gateway stopped.
	ignoredClosed = "closed"
)

// IgnoredReasons returns all reasons why a connection wakes nothing: errors in its startup packet, the backend's
// refusals, a CancelRequest for a sleeping cluster, and the gateway's shutdown.
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

// RefusedReason says why a client got no session. The set is closed, because it labels metrics.
type RefusedReason string

const (
	// RefusedStartup is a connection that lost its slot to another before its startup packet was complete.
	RefusedStartup RefusedReason = "too_many_starting"
	// RefusedHeld is a client that got no slot for waiting, or lost it to another.
	RefusedHeld RefusedReason = "too_many_held"
	// RefusedSpliced is a client whose cluster is awake but whose session got no slot.
	RefusedSpliced      RefusedReason = "too_many_spliced"
	RefusedReplication  RefusedReason = "replication"
	RefusedAsleepByHand RefusedReason = "asleep_by_hand"
	RefusedMaintenance  RefusedReason = "maintenance"
	RefusedReconnect    RefusedReason = "reconnect"
	RefusedTimeout      RefusedReason = "timeout"
	// RefusedUnreachable means that an instance was reported to accept sessions but did not, several times.
	RefusedUnreachable RefusedReason = "unreachable"
	// RefusedNoTLS means that the instance does not serve TLS, which the gateway had promised to the client.
	RefusedNoTLS RefusedReason = "no_tls"
	// RefusedClosed means that the gateway stopped and its drain timeout is over.
	RefusedClosed RefusedReason = "closed"
	// RefusedHungUp is a client that hung up while it was held.
	RefusedHungUp RefusedReason = "hung_up"
	// RefusedAhead is a client that sent more than the limit while it was held.
	RefusedAhead RefusedReason = "sent_ahead"
	// RefusedPanicked is a connection that hit a bug in the gateway.
	RefusedPanicked RefusedReason = "panic"
	// RefusedFailed is any other error of the backend.
	RefusedFailed RefusedReason = "failed"
)

// RefusedReasons returns all reasons.
func RefusedReasons() []RefusedReason {
	return []RefusedReason{
		RefusedStartup, RefusedHeld, RefusedSpliced, RefusedReplication, RefusedAsleepByHand, RefusedMaintenance, RefusedReconnect,
		RefusedTimeout, RefusedUnreachable, RefusedNoTLS, RefusedClosed, RefusedHungUp, RefusedAhead, RefusedPanicked, RefusedFailed,
	}
}

// Phase is a part of the time that a client waits. The set is closed, because it labels metrics.
type Phase string

const (
	// PhaseStartup is from the connection to the end of the startup packet, and depends on the client alone.
	PhaseStartup Phase = "startup"
	// PhaseResolve is the time that the backend took, including the wake.
	PhaseResolve Phase = "resolve"
	// PhaseConnect is from the backend's answer until the instance has received the startup packet.
	PhaseConnect Phase = "connect"
)

// Phases returns all phases.
func Phases() []Phase { return []Phase{PhaseStartup, PhaseResolve, PhaseConnect} }
