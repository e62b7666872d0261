// Package monitor watches one PostgreSQL instance: the kernel's socket events, samples of the sessions, the control channel,
// and whether the server is shutting down. It owns everything that this takes and gives observations.
//
// One goroutine drives it: it waits for [Monitor.Events] and for the times that [Monitor.NextSample] and [Monitor.NextProbe]
// return. [Monitor.Drain] and [Monitor.CloseSessions] may be called from any goroutine. Nothing ends on an error: what fails is
// unknown, and unknown is never idle.
//
// A session that is held makes a smart shutdown wait for 180 seconds. So sessions are held only where the settings permit it,
// the server is probed meanwhile, and they are closed at once when it turns new sessions away.
package monitor

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Settings say what to watch, and how.
type Settings struct {
	// Rules say which sessions do not count.
	Rules activity.Rules
	// Others are the addresses of the other instances. The pod's own is nobody's instance: whoever comes from there is in this
	// pod.
	Others []netip.Addr
	// Connect is whether database sessions may be held at all.
	Connect bool
	// QuietUntil is until when sessions are held for a sample only: the instance may be about to restart in place.
	QuietUntil time.Time
	// Database is the one whose control channel is listened to; empty: none.
	Database string
}

// Status is what is known after the newest sample or event.
type Status struct {
	// Known reports whether the newest sample succeeded; Tally is what it showed, SampledAt when it ended.
	Known     bool
	Tally     activity.Tally
	SampledAt time.Time
	// ServerBlockers is what the server said against a shutdown, Scheduler whether an extension is loaded that schedules jobs,
	// and InactiveSlots the number of logical slots that nobody reads.
	ServerBlockers []idle.Reason
	Scheduler      bool
	InactiveSlots  int64
	// ListenerConnected reports whether notifications are received.
	ListenerConnected bool
	// Reported reports whether socket events arrive, and Unsupported that they cannot.
	Reported, Unsupported bool
	// Told reports whether the gateway has passed a session on since this process started, or an earlier process has run: not
	// everything that came is known from samples and events then.
	Told bool
	// LastPeer is the address of the newest client that no sample found and that counted; invalid without one.
	LastPeer netip.Addr
}

// Monitor watches one instance.
type Monitor struct {
	parts    Parts
	settings Settings
	status   Status

	events   chan Event
	sockets  socketWatcher
	peers    peers
	mailbox  *mailbox
	channel  channel
	restored bool   // what an earlier process left has been read
	resumed  bool   // there was an earlier process
	saved    saved  // what was last written down
	failure  string // of the newest sample

	newest    newest
	since     since
	requested time.Time // the newest request to sleep since the newest sample
	began     time.Time // when the newest sample began
	sampleAt  time.Time // when another is asked for; zero: none is
	probed    time.Time // when the server was last asked whether it is shutting down
	kept      bool      // the sampler's session is, from one sample to the next

	mutex       sync.Mutex
	drained     time.Time // zero: not drained
	stopChannel context.CancelFunc
}

// newest is what the newest successful sample showed.
type newest struct {
	ledger     activity.Ledger
	started    int64
	changed    int64 // the newest change of the state of a resting session, in microseconds since 1970
	ended      time.Time
	terminable []activity.Terminable
}

// since is what came to light since the newest sample.
type since struct {
	used time.Time // the newest proof of a use
	gap  bool      // something may have come and gone unseen
}

// eventsAtOnce is how many events wait to be handled. A few are enough to know that the server is in use; more wait in the
// kernel, which says when it drops some.
const eventsAtOnce = 16

// New makes a monitor, which does nothing before its settings are known.
func New(parts Parts) *Monitor {
	events := make(chan Event, eventsAtOnce)
	return &Monitor{
		parts: parts, events: events, mailbox: &mailbox{events: events},
		sockets: socketWatcher{open: parts.OpenEvents, events: events}, stopChannel: func() {},
	}
}

// Configure takes new settings in. Sessions that they do not permit are closed at once.
func (m *Monitor) Configure(settings Settings) {
	settings.Rules.ClientAddr, settings.Rules.Probe = m.parts.ClientAddrs.ClientAddr, m.parts.ClientAddrs.Probe
	m.settings = settings
	m.peers.setInstances(settings.Others, time.Now())
	if !m.mayConnect() || m.quiet() {
		m.CloseSessions()
	}
}

// Status returns what is known.
func (m *Monitor) Status() Status { return m.status }

// Terminable returns the sessions that the newest sample found not to count, and that would hold a shutdown up.
func (m *Monitor) Terminable() []activity.Terminable { return m.newest.terminable }

// Events are what arrives between samples, for [Monitor.Handle].
func (m *Monitor) Events() <-chan Event { return m.events }

// Close closes everything and waits for the goroutines of the monitor's.
func (m *Monitor) Close() {
	m.stopListening()
	m.CloseSessions()
	m.sockets.close()
}

// mayConnect is whether database sessions may be held, the server's own answer aside.
func (m *Monitor) mayConnect() bool { return m.settings.Connect && !m.Drained() }

// quiet reports whether sessions are held for a sample only.
func (m *Monitor) quiet() bool { return time.Now().Before(m.settings.QuietUntil) }

// held reports whether a session is held.
func (m *Monitor) held() bool { return m.kept || m.channel.running() }
