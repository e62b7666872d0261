package activity

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Ended is a TCP session of the server that the kernel reports as ended.
type Ended struct {
	// Peer is the client's address and port.
	Peer netip.AddrPort
	// Sent and Received are bytes as the server's side counts them, the first and the last packet's one included.
	Sent, Received uint64
	// At is when the report arrived.
	At time.Time
}

// Verdict is what an ended TCP session comes to.
type Verdict string

// The verdicts.
const (
	// VerdictClient says that a look had seen the session as a client's.
	VerdictClient Verdict = "client"
	// VerdictUnseen says that nobody looked while it was open, and that a login may have been completed: a client.
	VerdictUnseen Verdict = "unseen"
	// VerdictUncertain says that it is as long as a failed login over TLS is: the counters of the next look decide.
	VerdictUncertain Verdict = "uncertain"
	// VerdictInfrastructure says that a look had seen the session, and that it does not count.
	VerdictInfrastructure Verdict = "infrastructure"
	// VerdictInstance says that it came from an instance of this cluster.
	VerdictInstance Verdict = "instance"
	// VerdictIgnored says that an annotation says not to count clients from there.
	VerdictIgnored Verdict = "ignored"
	// VerdictNoLogin says that no login can have been completed.
	VerdictNoLogin Verdict = "no_login"
	// VerdictLost says that reports were lost.
	VerdictLost Verdict = "lost"
)

// Verdicts is the closed list of verdicts.
func Verdicts() []Verdict {
	return []Verdict{
		VerdictClient, VerdictUnseen, VerdictUncertain, VerdictInfrastructure, VerdictInstance, VerdictIgnored, VerdictNoLogin,
		VerdictLost,
	}
}

const (
	// ShortestLogin is the least, in bytes, that a server sends to a client that logs in: measured 416 without TLS and
	// without a password, of which 360 are settings that no configuration leaves out. A client that is refused was seen to
	// get 331 at most, for a database with a name of 63 bytes that is not there.
	ShortestLogin = 350
	// longestRefusal is what a server sends, in bytes, to a client that logs in over TLS and is refused, after the
	// handshake: measured 402 at most, with a database that is not there. A login needs at least 445 after the handshake.
	longestRefusal = 430
)

// Handshake is what the server sends, in bytes, in a TLS handshake that is followed by nothing. It depends on the
// certificate, and is measured. Zero: the server has no TLS.
type Handshake struct{ Shortest, Longest uint64 }

// Surroundings is what an ended session is judged by.
type Surroundings struct {
	// Peers are the clients of the looks so far, and whose they are.
	Peers map[netip.AddrPort]Class
	// Instances are the addresses that instances of this cluster have, or had within the last minute.
	Instances []netip.Addr
	// Ignore describes sessions that never count.
	Ignore []idle.Pattern
	// Behind is the client for whom a gateway has made the connection; invalid: none has.
	Behind netip.Addr
	// Handshake is what a TLS handshake takes.
	Handshake Handshake
}

// Judge tells what an ended TCP session comes to.
func Judge(e Ended, around Surroundings) Verdict {
	address := e.Peer.Addr().Unmap()
	client := around.Behind
	if !client.IsValid() {
		client = address
	}
	if class, seen := around.Peers[netip.AddrPortFrom(address, e.Peer.Port())]; seen {
		switch class {
		case ClassInfrastructure, ClassIgnored, ClassInternal:
			return VerdictInfrastructure
		default:
			return VerdictClient
		}
	}
	switch shake := around.Handshake; {
	case slices.Contains(around.Instances, address):
		return VerdictInstance
	case slices.ContainsFunc(around.Ignore, func(p idle.Pattern) bool { return p.MatchesUnseen(client) }):
		return VerdictIgnored
	case e.Sent < ShortestLogin:
		return VerdictNoLogin
	case shake.Shortest <= e.Sent && e.Sent < shake.Longest+longestRefusal && shake.Longest != 0:
		return VerdictUncertain
	default:
		return VerdictUnseen
	}
}

// Database is what the statistics say of a database.
type Database struct {
	// Sessions is how many it has had, and Reset when the counter was set to zero, in microseconds since 1970.
	Sessions, Reset int64
}

// Ledger is what the statistics say of the databases, by name.
type Ledger map[string]Database

// maintenanceDatabase is where the operator's probes and the standbys' slot replicators log in.
const maintenanceDatabase = "postgres"

// Less is the ledger without so many sessions of each database.
func (l Ledger) Less(own map[string]int64) Ledger {
	others := maps.Clone(l)
	for name, count := range own {
		if database, known := others[name]; known {
			database.Sessions -= count
			others[name] = database
		}
	}
	return others
}

// Rose tells whether a database has had sessions between two looks that the infrastructure's in the maintenance database do
// not explain: what another database has had more than that one is taken for somebody else's. A counter that was reset, and a
// database that has come or gone, are not explained either. The operator's exporter, which logs in to the application's database
// four times as often, is in use by this, where [Account] can tell.
func (l Ledger) Rose(after Ledger) bool {
	explained := after[maintenanceDatabase].Sessions - l[maintenanceDatabase].Sessions
	for name, now := range after {
		before, known := l[name]
		if !known || now.Reset != before.Reset || now.Sessions < before.Sessions {
			return true
		}
		if name != maintenanceDatabase && now.Sessions-before.Sessions > explained {
			return true
		}
	}
	return len(l) != len(after)
}

// Same tells whether no database but the maintenance one has had a session between two looks, and none has come, gone or
// been reset: the proof that nobody was there while nobody looked.
func (l Ledger) Same(after Ledger) bool {
	rises, comparable := l.rise(after)
	return comparable && len(l) != 0 && len(rises) == 0
}
