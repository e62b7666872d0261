package monitor

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// Parts are the monitor's dependencies.
type Parts struct {
	Sampler     Sampler
	Server      Server
	ClientAddrs ClientAddrs
	Checkpoints Checkpoints
	Observer    Observer
	Logger      *slog.Logger
	// OpenEvents starts receiving the kernel's socket events.
	OpenEvents func() (SocketEvents, error)
	// Listen makes a listener for a database.
	Listen Listen
	// PodUID is the UID of the pod.
	PodUID string
}

// Sampler samples the sessions of the instance.
type Sampler interface {
	Sample(ctx context.Context, rules activity.Rules) (postgres.Sample, error)
	Close()
}

// Server reports whether PostgreSQL rejects new sessions.
type Server interface {
	ShuttingDown(ctx context.Context) (bool, error)
}

// SocketEvents are the kernel's reports of ended TCP sessions. Wait may run concurrently with the other methods.
type SocketEvents interface {
	// Prove returns the sessions that ended meanwhile.
	Prove(ctx context.Context) ([]activity.Ended, error)
	// Wait blocks until Arrived has something to return. It fails once the source is closed.
	Wait() error
	// Arrived returns the sessions whose end the kernel has reported.
	Arrived() ([]activity.Ended, error)
	// Open returns the sessions whose end it has not reported.
	Open() ([]activity.Open, error)
	Close()
}

// Listen makes a listener for a database. The listener calls notify for every notification and failed for every connection that
// failed or ended.
type Listen func(database string, notify func(postgres.Notification), failed func(error)) Listener

// Listener listens to the control channel until the context ends, then closes its session at once.
type Listener interface {
	Run(ctx context.Context)
	Connected() bool
}

// ClientAddrs resolves the client of a connection made by the wake gateway, and recognizes probes.
type ClientAddrs interface {
	ClientAddr(peer netip.AddrPort) netip.AddrPort
	Probe(peer netip.AddrPort) bool
	// ReportedProbe is Probe for a connection that the kernel lists as open or reports as ended.
	ReportedProbe(peer netip.AddrPort) bool
	// ReportsLost says that reports of the kernel were lost, or not received.
	ReportsLost()
	// Known reports whether a connection is a probe of this sidecar, or was announced by the gateway.
	Known(peer netip.AddrPort) bool
	Seen(connected func(netip.AddrPort) bool)
	// SessionMissed reports whether the gateway has announced a session that no sample has found and no event has reported.
	SessionMissed() bool
	Ended(peer netip.AddrPort)
}

// Checkpoints persists state across restarts of the process.
type Checkpoints interface {
	Save(c Checkpoint) error
	Load(instance string) (Checkpoint, error)
}

// Observer counts what happens.
type Observer interface {
	// Sampled counts a sample, how long it took and whether it failed.
	Sampled(took time.Duration, err error)
	// Notified counts a notification.
	Notified(kind postgres.Kind)
	// Judged counts a TCP session that ended.
	Judged(verdict activity.Verdict)
}
