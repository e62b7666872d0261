// Package clientaddr maps the connections of the wake gateway to the clients that it makes them for. While a cluster falls
// asleep or wakes, the gateway forwards sessions, and PostgreSQL sees the gateway's address. So that rules about client
// addresses still apply, the gateway announces the client of each connection by its source port, and which connections are its
// own probes. The probes of this sidecar are stored in the same table.
//
// Anybody who reaches the pod may make such an announcement, but only for connections from the address that the request comes
// from: a false one affects only the sender's own connections.
package clientaddr

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// maximumEntries limits the memory of the table; connections beyond it count as the gateway's own.
	maximumEntries = 4096
	// announcementLifetime is how long an announced connection may take to arrive.
	announcementLifetime = time.Minute
	// unreportedProbeLifetime is how long an entry for a probe of this sidecar is kept after the probe was closed, so that the server
	// can end its side, if the kernel does not report that end. It is short because another client may get the port: a forwarded
	// port is local too.
	unreportedProbeLifetime = 3 * time.Second
	// reportedProbeLifetime is how much longer the entry is kept if the kernel does report that end.
	reportedProbeLifetime = time.Minute
)

// Table maps connections of the gateway to clients. It is safe for concurrent use.
type Table struct {
	mutex   sync.Mutex
	entries map[netip.AddrPort]entry
	missed  bool // whether an announced session was found by no sample, and its end not reported
}

type entry struct {
	peer  netip.AddrPort
	probe bool
	own   bool      // whether it is this sidecar's probe, and the kernel will report its end
	until time.Time // when the entry expires, unless a sample contained it; zero while the probe is open
	seen  bool      // whether a sample has contained it
}

func (e entry) expired(now time.Time) bool { return !e.until.IsZero() && !now.Before(e.until) }

// NewTable makes an empty table.
func NewTable() *Table { return &Table{entries: map[netip.AddrPort]entry{}} }

// Add stores an announcement from the gateway's address. It is dropped if the table is full: the session then counts as the
// gateway's own.
func (t *Table) Add(gateway netip.Addr, a contract.ClientAddress) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := time.Now()
	if len(t.entries) >= maximumEntries {
		t.expire(now)
	}
	if len(t.entries) >= maximumEntries {
		t.missed = t.missed || !a.Probe
		return
	}
	peer := netip.AddrPortFrom(gateway.Unmap().WithZone(""), a.Port)
	t.entries[peer] = entry{peer: a.Peer, probe: a.Probe, until: now.Add(announcementLifetime)}
}

// SessionMissed reports whether the gateway has announced a session that nobody has judged: no sample has found it, and its end
// was not reported.
func (t *Table) SessionMissed() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, e := range t.entries {
		if !e.probe && !e.seen {
			return true
		}
	}
	return t.missed
}

// AddProbe stores a connection of this sidecar that only asks whether PostgreSQL accepts sessions. It must be called before the
// first byte is sent, and closed once the connection is closed: until then nobody else can have its port, however long the
// server takes to answer.
func (t *Table) AddProbe(local netip.AddrPort) (closed func()) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.entries[local] = entry{peer: local, probe: true, own: true}
	return func() {
		t.mutex.Lock()
		defer t.mutex.Unlock()
		if e := t.entries[local]; e.own {
			e.until = time.Now().Add(unreportedProbeLifetime)
			t.entries[local] = e
		}
	}
}

// ClientAddr returns the client of a connection: the announced one or, if none, the connection's own peer.
func (t *Table) ClientAddr(peer netip.AddrPort) netip.AddrPort {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if e, ok := t.entries[peer]; ok {
		return e.peer
	}
	return peer
}

// Probe reports whether the client of a session that a sample found is a probe of this sidecar, or was announced as one by the
// gateway.
func (t *Table) Probe(peer netip.AddrPort) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	e := t.entries[peer]
	return e.probe && !e.expired(time.Now())
}

// ReportedProbe is Probe for a connection that the kernel lists as open or reports as ended. For this sidecar's probes it needs no
// time limit: before another client could use the same port, the kernel would have reported the end of the probe.
func (t *Table) ReportedProbe(peer netip.AddrPort) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	e := t.entries[peer]
	return e.own || e.probe && !e.expired(time.Now())
}

// ReportsLost says that reports of the kernel were lost, or not received. The ends of closed probes may be among them, so these
// entries are kept for unreportedProbeLifetime only.
func (t *Table) ReportsLost() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for peer, e := range t.entries {
		e.own = e.own && e.until.IsZero()
		t.entries[peer] = e
	}
}

// Known reports whether a connection is a probe of this sidecar, or was announced by the gateway.
func (t *Table) Known(peer netip.AddrPort) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	_, ok := t.entries[peer]
	return ok
}

// Ended removes a connection that has ended: another client may reuse its port.
func (t *Table) Ended(peer netip.AddrPort) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.entries, peer)
}

// Seen records which connections a sample contains, and removes those that have ended or never arrived.
func (t *Table) Seen(connected func(netip.AddrPort) bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for peer, e := range t.entries {
		switch {
		case connected(peer):
			e.seen = true
			t.entries[peer] = e
		case e.seen:
			delete(t.entries, peer)
		}
	}
	t.expire(time.Now())
}

// expire removes announced connections that did not arrive in time, and own probes whose end should have been reported.
func (t *Table) expire(now time.Time) {
	for peer, e := range t.entries {
		at := now
		if e.own {
			at = now.Add(-reportedProbeLifetime)
		}
		if !e.seen && e.expired(at) {
			t.missed = t.missed || !e.probe
			delete(t.entries, peer)
		}
	}
}
