package monitor

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// Settings define what to watch and how.
type Settings struct {
	// Rules define which sessions do not count.
	Rules activity.Rules
	// Others are the addresses of the other instances. The pod's own address is never an instance's: its clients run in
	// this pod.
	Others []netip.Addr
	// Connect permits database sessions.
	Connect bool
	// Quiet says that sessions are opened for a sample only, because PostgreSQL is restarted in place, which waits for
	// them; until QuietUntil they are as well.
	Quiet      bool
	QuietUntil time.Time
	// Specification identifies what the Cluster specifies, for a process that is started after this one.
	Specification string
	// Database is the database whose control channel is listened to; empty for none.
	Database string
}

// quiet reports whether sessions are opened for a sample only.
func (s Settings) quiet() bool { return s.Quiet || time.Now().Before(s.QuietUntil) }

// Status is what is known after the newest sample or event.
type Status struct {
	// Known is set if the newest sample succeeded. Tally is its result, SampledAt its end.
	Known     bool
	Tally     activity.Tally
	SampledAt time.Time
	// ServerBlockers are the server's reasons against a shutdown. Scheduler is set if an extension that schedules jobs is
	// loaded. InactiveSlots is the number of logical slots without a consumer.
	ServerBlockers []idle.Reason
	Scheduler      bool
	InactiveSlots  int64
	// ListenerConnected is set while notifications are received.
	ListenerConnected bool
	// Reported is set while socket events are received, Unsupported if the kernel does not support them.
	Reported, Unsupported bool
	// SessionMissed is set if the gateway has forwarded a session that neither a sample nor an event has shown, or if an
	// earlier process ran beside this server.
	SessionMissed bool
	// LastDirect is when the newest direct TCP session was noticed: one of a client, through a Service or to the pod's
	// address, and not of the gateway or an instance. It is noticed when it ends, or when a sample first finds it open,
	// whether or not it counts. When socket events begin to be received again, one may have been missed, so that moment
	// counts too. The time is only meaningful if Reported is set.
	LastDirect time.Time
	// LastPeer is the address of the newest client that counted but was in no sample; invalid if none.
	LastPeer netip.Addr
}

// Monitor watches one instance.
type Monitor struct {
	settings Settings
	events   chan Event

	sockets     socketWatcher
	peers       peers
	channel     channel
	sessions    sessions
	checkpoints checkpoints
	prober      prober

	began    time.Time                 // start of the newest sample
	sampleAt time.Time                 // when the next sample is requested; zero for none
	drained  atomic.Pointer[time.Time] // nil: not drained
}

// eventsAtOnce is the capacity of the event queue. A few events suffice to know that the server is in use; more wait in
// the kernel, which reports when it drops some.
const eventsAtOnce = 16

// New makes a monitor. It does nothing until it is configured.
func New(parts Parts) *Monitor {
	events := make(chan Event, eventsAtOnce)
	return &Monitor{
		events:  events,
		sockets: socketWatcher{open: parts.OpenEvents, logger: parts.Logger, events: events},
		peers:   peers{addrs: parts.ClientAddrs, observer: parts.Observer},
		channel: channel{
			mailbox: mailbox{events: events}, listenTo: parts.Listen, observer: parts.Observer, logger: parts.Logger,
		},
		sessions:    sessions{sampler: parts.Sampler, observer: parts.Observer, logger: parts.Logger},
		checkpoints: checkpoints{store: parts.Checkpoints, logger: parts.Logger},
		prober:      prober{server: parts.Server, logger: parts.Logger},
	}
}

// Configure applies new settings. Sessions that they do not permit are closed at once.
func (m *Monitor) Configure(settings Settings) {
	m.peers.ignore = settings.Rules.Ignore
	m.peers.setInstances(settings.Others, time.Now())
	settings.Rules.Addresses = m.peers.instanceAddresses(time.Now())
	settings.Rules.ClientAddr, settings.Rules.Probe = m.peers.addrs.ClientAddr, m.peers.addrs.isProbe
	m.settings = settings
	if !settings.Connect || settings.quiet() || m.Drained() {
		m.CloseSessions()
	}
}

// Rules returns the rules by which sessions are judged.
func (m *Monitor) Rules() activity.Rules { return m.settings.Rules }

// Status returns the current status.
func (m *Monitor) Status() Status {
	status := m.sessions.status
	status.ListenerConnected = m.channel.connected()
	status.Reported, status.Unsupported = m.sockets.reported(), m.sockets.unsupported
	status.LastDirect, status.LastPeer = m.peers.lastDirect, m.peers.lastUnseen
	return status
}

// Terminable returns the sessions of the newest sample that do not count but would delay a shutdown.
func (m *Monitor) Terminable() []activity.Terminable { return m.sessions.newest.Tally.Terminable() }

// Events returns the events between samples, to be passed to [Monitor.Handle].
func (m *Monitor) Events() <-chan Event { return m.events }

// Close closes everything and waits for the monitor's goroutines.
func (m *Monitor) Close() {
	m.CloseSessions()
	m.channel.close()
	m.sockets.close()
}
