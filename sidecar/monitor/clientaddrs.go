package monitor

import (
	"net/netip"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

const (
	// maximumClientAddrs limits the memory of the table; connections beyond it count as the gateway's own.
	maximumClientAddrs = 4096
	// announcementLifetime is how long an announced connection may take to arrive.
	announcementLifetime = time.Minute
	// unreportedProbeLifetime is how long an entry for a probe of this sidecar is kept after the probe was closed, so that
	// the server can end its side, if the kernel does not report that end. It is short because another client may get the
	// port: a forwarded port is local too.
	unreportedProbeLifetime = 3 * time.Second
	// reportedProbeLifetime is how much longer the entry is kept if the kernel does report that end.
	reportedProbeLifetime = time.Minute
)

// ClientAddrs maps the connections of the wake gateway to the clients that it makes them for. While a cluster falls
// asleep or wakes, the gateway forwards sessions, and PostgreSQL sees the gateway's address. So that rules about client
// addresses still apply, the gateway announces the client of each connection by its source port, and which connections
// are its own probes. The probes of this sidecar are stored in the same table. Its methods may be called from any
// goroutine.
//
// Anybody who reaches the pod may make such an announcement, but only for connections from the address that the request
// comes from: a false one affects only the sender's own connections.
type ClientAddrs struct {
	mutex       sync.Mutex
	connections map[netip.AddrPort]connection
	missed      bool // whether an announced session was found by no sample, and its end not reported
}

// connection is what is known of one, until it ends.
type connection struct {
	peer  netip.AddrPort
	probe bool
	own   bool      // whether it is this sidecar's probe, and the kernel will report its end
	until time.Time // when the entry expires, unless a sample contained it; zero while the probe is open
	seen  bool      // whether a sample has contained it
}

func (e connection) expired(now time.Time) bool { return !e.until.IsZero() && !now.Before(e.until) }

// NewClientAddrs makes an empty table.
func NewClientAddrs() *ClientAddrs { return &ClientAddrs{connections: map[netip.AddrPort]connection{}} }

// Add stores an announcement from the gateway's address. It is dropped if the table is full: the session then counts as
// the gateway's own.
func (c *ClientAddrs) Add(gateway netip.Addr, a contract.ClientAddress) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := time.Now()
	if len(c.connections) >= maximumClientAddrs {
		c.expire(now)
	}
	if len(c.connections) >= maximumClientAddrs {
		c.missed = c.missed || !a.Probe
		return
	}
	peer := netip.AddrPortFrom(gateway.Unmap().WithZone(""), a.Port)
	c.connections[peer] = connection{peer: a.Peer, probe: a.Probe, until: now.Add(announcementLifetime)}
}

// sessionMissed reports whether the gateway has announced a session that nobody has judged: no sample has found it, and
// its end was not reported.
func (c *ClientAddrs) sessionMissed() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.missed
}

// restarted says that the server started at a time: what was announced before was for an earlier one.
func (c *ClientAddrs) restarted(at time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.missed = false
	for peer, e := range c.connections {
		if !e.probe && !e.seen && e.until.Add(-announcementLifetime).Before(at) {
			delete(c.connections, peer)
		}
	}
}

// sessionAwaited reports whether the gateway has announced a session that no sample has found and whose end was not
// reported. It may have been missed, or may still begin; once its connection is open, it counts as connecting until a
// sample has it.
func (c *ClientAddrs) sessionAwaited() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, e := range c.connections {
		if !e.probe && !e.seen {
			return true
		}
	}
	return false
}

// AddProbe stores a connection of this sidecar that only asks whether PostgreSQL accepts sessions. It must be called
// before the first byte is sent, and closed once the connection is closed: until then nobody else can have its port,
// however long the server takes to answer.
func (c *ClientAddrs) AddProbe(local netip.AddrPort) (closed func()) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.connections[local] = connection{peer: local, probe: true, own: true}
	return func() {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		if e := c.connections[local]; e.own {
			e.until = time.Now().Add(unreportedProbeLifetime)
			c.connections[local] = e
		}
	}
}

// ClientAddr returns the client of a connection: the announced one or, if none, the connection's own peer.
func (c *ClientAddrs) ClientAddr(peer netip.AddrPort) netip.AddrPort {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if e, ok := c.connections[peer]; ok {
		return e.peer
	}
	return peer
}

// isProbe reports whether the client of a session that a sample found is a probe of this sidecar, or was announced as
// one by the gateway.
func (c *ClientAddrs) isProbe(peer netip.AddrPort) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	e := c.connections[peer]
	return e.probe && !e.expired(time.Now())
}

// isReportedProbe is isProbe for a connection that the kernel lists as open or reports as ended. For this sidecar's
// probes it needs no time limit: before another client could use the same port, the kernel would have reported the end
// of the probe.
func (c *ClientAddrs) isReportedProbe(peer netip.AddrPort) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	e := c.connections[peer]
	return e.own || e.probe && !e.expired(time.Now())
}

// reportsLost says that reports of the kernel were lost, or not received. The ends of closed probes may be among them,
// so these entries are kept for unreportedProbeLifetime only.
func (c *ClientAddrs) reportsLost() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for peer, e := range c.connections {
		e.own = e.own && e.until.IsZero()
		c.connections[peer] = e
	}
}

// known reports whether a connection is a probe of this sidecar, or was announced by the gateway.
func (c *ClientAddrs) known(peer netip.AddrPort) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	_, ok := c.connections[peer]
	return ok
}

// ended removes a connection that has ended: another client may reuse its port.
func (c *ClientAddrs) ended(peer netip.AddrPort) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.connections, peer)
}

// seen records which connections a sample contains, and removes those that have ended or never arrived.
func (c *ClientAddrs) seen(connected func(netip.AddrPort) bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for peer, e := range c.connections {
		switch {
		case connected(peer):
			e.seen = true
			c.connections[peer] = e
		case e.seen:
			delete(c.connections, peer)
		}
	}
	c.expire(time.Now())
}

// expire removes announced connections that did not arrive in time, and own probes whose end should have been reported.
func (c *ClientAddrs) expire(now time.Time) {
	for peer, e := range c.connections {
		at := now
		if e.own {
			at = now.Add(-reportedProbeLifetime)
		}
		if !e.seen && e.expired(at) {
			c.missed = c.missed || !e.probe
			delete(c.connections, peer)
		}
	}
}
