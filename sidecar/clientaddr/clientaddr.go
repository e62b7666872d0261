// Package clientaddr maps the connections that the wake gateway makes to the clients that it makes them for. While a cluster falls asleep or wakes, the
// gateway passes sessions on, and PostgreSQL sees the gateway's address. The gateway says beforehand whose session will come
// from which of its ports, so that rules about clients' addresses hold all the same, and which connections are its own probes. The
// probes of this sidecar are kept beside them.
//
// Anybody who reaches the pod may say so, but only of connections from the address that the request itself comes from:
// whoever lies gives away nothing but their own connections.
package clientaddr

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// maximumEntries bounds the memory that entries take; what comes beyond it counts as the gateway's own.
	maximumEntries = 4096
	// expectedWithin is how long an announced connection may take to come.
	expectedWithin = time.Minute
	// probeLasts is how long one of this sidecar's probes may take, its end included. It is short, since the port may be
	// another client's next where nothing reports that it ended: a forwarded port is local too.
	probeLasts = 3 * time.Second
)

// Table maps connections of the gateway to clients. It may be used by several goroutines.
type Table struct {
	mutex   sync.Mutex
	entries map[netip.AddrPort]entry
	told    bool
}

type entry struct {
	peer  netip.AddrPort
	probe bool
	until time.Time // when it is forgotten unless a sample has found it, and is no probe any more
	seen  bool      // in the newest sample
}

// NewTable makes an empty table.
func NewTable() *Table { return &Table{entries: map[netip.AddrPort]entry{}} }

// Add takes in what came from the gateway's address. It is passed over when the table is full: the session is then the
// gateway's own, and counts.
func (t *Table) Add(gateway netip.Addr, a contract.ClientAddress) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.told = t.told || !a.Probe
	now := time.Now()
	if len(t.entries) >= maximumEntries {
		t.expire(now)
	}
	if len(t.entries) < maximumEntries {
		peer := netip.AddrPortFrom(gateway.Unmap().WithZone(""), a.Port)
		t.entries[peer] = entry{peer: a.Peer, probe: a.Probe, until: now.Add(expectedWithin)}
	}
}

// Told reports whether the gateway has ever named the client of a session.
func (t *Table) Told() bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.told
}

// AddProbe takes in a connection of this sidecar's own that only asks whether PostgreSQL accepts sessions. It must be called
// before the first byte is sent.
func (t *Table) AddProbe(local netip.AddrPort) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.entries[local] = entry{peer: local, probe: true, until: time.Now().Add(probeLasts)}
}

// ClientAddr returns the client of a connection: the one that the gateway named, else the connection's own peer.
func (t *Table) ClientAddr(peer netip.AddrPort) netip.AddrPort {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if e, ok := t.entries[peer]; ok {
		return e.peer
	}
	return peer
}

// Probe reports whether a connection is a probe of this sidecar's, or of the gateway's by its own word.
func (t *Table) Probe(peer netip.AddrPort) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	e := t.entries[peer]
	return e.probe && time.Now().Before(e.until)
}

// Ended forgets a connection that has ended: its port may be another client's next.
func (t *Table) Ended(peer netip.AddrPort) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.entries, peer)
}

// Seen takes in which connections a sample has found, and forgets those that have gone or never came.
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

// expire forgets the connections that were named and did not come.
func (t *Table) expire(now time.Time) {
	for peer, e := range t.entries {
		if !e.seen && now.After(e.until) {
			delete(t.entries, peer)
		}
	}
}
