package activity

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Ended is a TCP session of the server that the kernel reported as ended.
type Ended struct {
	// Peer is the client's address and port.
	Peer netip.AddrPort
	// Received is how many bytes the client sent, including one for its FIN.
	Received uint64
	// At is when the report arrived.
	At time.Time
}

// Open is a TCP session of the server that the kernel lists as open.
type Open struct {
	// Peer is the client's address and port.
	Peer netip.AddrPort
	// Received is how many bytes the client has sent.
	Received uint64
}

// Verdict is how an ended TCP session is judged.
type Verdict string

// The verdicts.
const (
	// VerdictClient means that a sample found the session, and that it counts.
	VerdictClient Verdict = "client"
	// VerdictUnseen means that no sample found the session, but it sent as much as a startup packet: a client.
	VerdictUnseen Verdict = "unseen"
	// VerdictInfrastructure means that a sample found the session, and that it does not count.
	VerdictInfrastructure Verdict = "infrastructure"
	// VerdictProbe means that it was a probe by this sidecar or the wake gateway.
	VerdictProbe Verdict = "probe"
	// VerdictInstance means that it came from another instance of this cluster.
	VerdictInstance Verdict = "instance"
	// VerdictIgnored means that an annotation excludes clients with this address.
	VerdictIgnored Verdict = "ignored"
	// VerdictIncomplete means that it sent no complete startup packet.
	VerdictIncomplete Verdict = "incomplete"
	// VerdictLost means that reports were lost.
	VerdictLost Verdict = "lost"
)

// Verdicts returns all verdicts.
func Verdicts() []Verdict {
	return []Verdict{
		VerdictClient, VerdictUnseen, VerdictInfrastructure, VerdictProbe, VerdictInstance, VerdictIgnored, VerdictIncomplete,
		VerdictLost,
	}
}

// Used reports whether the session keeps the cluster awake.
func (v Verdict) Used() bool { return v == VerdictClient || v == VerdictUnseen || v == VerdictLost }

// JudgeOpen returns the verdict on an open TCP session, as if it ended now.
func JudgeOpen(o Open, around Surroundings) Verdict {
	return Judge(Ended{Peer: o.Peer, Received: o.Received}, around)
}

// Surroundings is the context in which a session is judged.
type Surroundings struct {
	// Class is the session's class in one of the last two samples; empty if neither found it.
	Class Class
	// Probe says that it was a probe by this sidecar or the wake gateway.
	Probe bool
	// Instances are the addresses that the other instances of this cluster have, or had within the last minute.
	Instances []netip.Addr
	// Client is the client for which the wake gateway made the connection; invalid if the peer is the client itself.
	Client netip.Addr
	// Ignore describes sessions that never count.
	Ignore []idle.Pattern
}

// Judge returns the verdict on an ended TCP session. Any client that would wake a sleeping cluster keeps this one
// awake, including a client with a wrong password and pg_isready.
func Judge(e Ended, around Surroundings) Verdict {
	address := e.Peer.Addr().Unmap()
	client := around.Client
	if !client.IsValid() {
		client = address
	}
	// The gateway may pass an instance on, such as a standby that reads the primary's replication slots through -rw
	// during a handover.
	instance := slices.ContainsFunc(around.Instances,
		func(a netip.Addr) bool { return a == address || a == client.Unmap() })
	switch {
	case around.Class == ClassInfrastructure, around.Class == ClassIgnored, around.Class == ClassInternal:
		return VerdictInfrastructure
	case around.Class != "":
		return VerdictClient
	case around.Probe:
		return VerdictProbe
	// Connections over the loopback interface come from this pod, or through a forwarded port.
	case instance && !address.IsLoopback():
		return VerdictInstance
	case slices.ContainsFunc(around.Ignore, func(p idle.Pattern) bool { return p.MatchesUnseen(client) }):
		return VerdictIgnored
	case e.Received < uint64(contract.MinStartupPacketBytes):
		return VerdictIncomplete
	default:
		return VerdictUnseen
	}
}
