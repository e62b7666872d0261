package monitor

import (
	"context"
	"log/slog"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// Parts are the monitor's dependencies.
type Parts struct {
	Sampler     Sampler
	Server      Server
	ClientAddrs *ClientAddrs
	Checkpoints Checkpoints
	Observer    Observer
	Logger      *slog.Logger
	// OpenEvents starts receiving the kernel's socket events.
	OpenEvents func() (SocketEvents, error)
	// Listen makes a listener for a database.
	Listen Listen
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

// Listen makes a listener for a database. The listener calls notify for every notification and failed for every
// connection that failed or ended.
type Listen func(database string, notify func(postgres.Notification), failed func(error)) Listener

// Listener listens to the control channel until the context ends, then closes its session at once.
type Listener interface {
	Run(ctx context.Context)
	Connected() bool
}

// Checkpoints persists state across restarts of the process.
type Checkpoints interface {
	Save(c Checkpoint) error
	Load() (Checkpoint, error)
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
