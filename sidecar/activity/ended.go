package activity

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Ended is a TCP session of the server that the kernel reports as ended.
type Ended struct {
	// Peer is the client's address and port.
	Peer netip.AddrPort
	// Received is how many bytes the client sent; its FIN counts as one.
	Received uint64
	// At is when the report arrived.
	At time.Time
}

// Open is a TCP session of the server that has not ended, by the kernel's list.
type Open struct {
	// Peer is the client's address and port.
	Peer netip.AddrPort
	// Received is how many bytes the client has sent.
	Received uint64
}

// Verdict is what an ended TCP session comes to.
type Verdict string

// The verdicts.
const (
	// VerdictClient says that a sample had found the session, and that it counts.
	VerdictClient Verdict = "client"
	// VerdictUnseen says that no sample found the session, and that it sent as much as a startup packet: a client.
	VerdictUnseen Verdict = "unseen"
	// VerdictInfrastructure says that a sample had found the session, and that it does not count.
	VerdictInfrastructure Verdict = "infrastructure"
	// VerdictProbe says that it was a probe of this sidecar's or of the wake gateway's.
	VerdictProbe Verdict = "probe"
	// VerdictInstance says that it came from another instance of this cluster.
	VerdictInstance Verdict = "instance"
	// VerdictIgnored says that an annotation says not to count clients from there.
	VerdictIgnored Verdict = "ignored"
	// VerdictIncomplete says that it sent no complete startup packet.
	VerdictIncomplete Verdict = "incomplete"
	// VerdictLost says that reports were lost.
	VerdictLost Verdict = "lost"
)

// Verdicts is the closed list of verdicts.
func Verdicts() []Verdict {
	return []Verdict{
		VerdictClient, VerdictUnseen, VerdictInfrastructure, VerdictProbe, VerdictInstance, VerdictIgnored, VerdictIncomplete,
		VerdictLost,
	}
}

// Used reports whether the session keeps the cluster awake.
func (v Verdict) Used() bool { return v == VerdictClient || v == VerdictUnseen || v == VerdictLost }

// JudgeOpen says what a TCP session comes to that is open, as if it ended now.
func JudgeOpen(o Open, around Surroundings) Verdict {
	return Judge(Ended{Peer: o.Peer, Received: o.Received}, around)
}

// Surroundings is what a session is judged by.
type Surroundings struct {
	// Class is whose the session was in one of the last two samples; empty: none of them found it.
	Class Class
	// Probe says that it was a probe of this sidecar's or of the wake gateway's.
	Probe bool
	// Instances are the addresses that the other instances of this cluster have, or had within the last minute.
	Instances []netip.Addr
	// Client is the client for whom the wake gateway made the connection; invalid: it was the peer's own.
	Client netip.Addr
	// Ignore describes sessions that never count.
	Ignore []idle.Pattern
}

// Judge says what an ended TCP session comes to. Whoever would wake a sleeping cluster keeps this one awake, a client with a
// wrong password and pg_isready too.
func Judge(e Ended, around Surroundings) Verdict {
	address := e.Peer.Addr().Unmap()
	client := around.Client
	if !client.IsValid() {
		client = address
	}
	switch {
	case around.Class == ClassInfrastructure, around.Class == ClassIgnored, around.Class == ClassInternal:
		return VerdictInfrastructure
	case around.Class != "":
		return VerdictClient
	case around.Probe:
		return VerdictProbe
	// Over the loopback interface comes whoever is in this pod, a forwarded port too.
	case slices.Contains(around.Instances, address) && !address.IsLoopback():
		return VerdictInstance
	case slices.ContainsFunc(around.Ignore, func(p idle.Pattern) bool { return p.MatchesUnseen(client) }):
		return VerdictIgnored
	case e.Received < uint64(contract.ShortestStartupPacket):
		return VerdictIncomplete
	default:
		return VerdictUnseen
	}
}
