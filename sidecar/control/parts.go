// Package control is the loop of the sidecar's worker: it looks, decides, and acts.
//
// One goroutine owns all state. Everything outside is behind small interfaces, so that whole lives of a cluster run in the
// tests without a server and without waiting. The loop never ends on an error: what fails is unknown, and unknown is never
// idle. Database sessions are held only while the cluster is enabled, healthy and awake and the server accepts sessions;
// they are closed at once when any of that ends, since an open session makes PostgreSQL's smart shutdown wait.
package control

import (
	"context"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/evidence"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
)

// Sampler looks at the sessions of the instance.
type Sampler interface {
	Sample(ctx context.Context, rules activity.Rules) (postgres.Sample, error)
	Close()
}

// Server tells whether PostgreSQL turns new sessions away.
type Server interface {
	ShuttingDown(ctx context.Context) (bool, error)
}

// Terminator ends sessions that do not count.
type Terminator interface {
	Terminate(ctx context.Context, doomed []activity.Doomed) (int, error)
	Close()
}

// Reports are the kernel's, of TCP sessions that have ended.
type Reports interface {
	Prove(ctx context.Context, measure bool) ([]activity.Ended, activity.Handshake, error)
	Receive(deadline time.Time) ([]activity.Ended, error)
	Close()
}

// Siblings are the sidecars of the other instances.
type Siblings interface {
	Ask(ctx context.Context, instances map[string]netip.Addr) []siblings.Answer
}

// Introductions tell the client behind a connection that the wake gateway made.
type Introductions interface {
	Behind(peer netip.AddrPort) netip.AddrPort
	Seen(connected func(netip.AddrPort) bool)
	Ended(peer netip.AddrPort)
}

// Exporter is the operator's, in this pod.
type Exporter interface {
	Scrape(ctx context.Context, encrypted bool) error
}

// Farewell tells PostgreSQL's container that its pod will be deleted to sleep.
type Farewell interface {
	Leave() error
	TakeBack() error
}

// Evidence outlives the worker.
type Evidence interface {
	Save(e evidence.Evidence) error
	Load(instance string) (evidence.Evidence, error)
}

// Listener listens to the control channel until the context ends, and then closes its session at once.
type Listener interface {
	Run(ctx context.Context)
	Connected() bool
}

// Listen makes a listener for a database.
type Listen func(database string, notify func(postgres.Notification), failed func(error)) Listener

// Kubernetes is what the loop does through the API server.
type Kubernetes interface {
	Get(ctx context.Context) (kubernetes.View, error)
	Hibernate(ctx context.Context, v kubernetes.View, at time.Time, reason string) error
	Withdraw(ctx context.Context, v kubernetes.View) error
	Annotate(ctx context.Context, v kubernetes.View, key string, value *string) error
	RunningBackups(ctx context.Context) ([]string, error)
	SuspendBackups(ctx context.Context, at time.Time) (int, error)
	ResumeBackups(ctx context.Context) (int, error)
	Record(ctx context.Context, v kubernetes.View, e kubernetes.Event, at time.Time)
}

// Result is how an attempt to sleep ended.
type Result string

// The results.
const (
	// ResultSuccess says that the switch is on.
	ResultSuccess Result = "success"
	// ResultAborted says that something forbade it at the last moment.
	ResultAborted Result = "aborted"
	// ResultConflict says that the Cluster changed while we acted.
	ResultConflict Result = "conflict"
	// ResultWithdrawn says that the switch was turned off again, before the operator did anything.
	ResultWithdrawn Result = "withdrawn"
	// ResultError says that the API server or the database failed us.
	ResultError Result = "error"
)

// Results is the closed list of results.
func Results() []Result {
	return []Result{ResultSuccess, ResultAborted, ResultConflict, ResultWithdrawn, ResultError}
}

// Observer is told what happens; it serves metrics and reports.
type Observer interface {
	// Publish gives the newest status, after every step.
	Publish(Status)
	// Sampled counts a look, how long it took and whether it failed.
	Sampled(took time.Duration, err error)
	// Notified counts a notification.
	Notified(postgres.Kind)
	// Judged counts a TCP session that ended.
	Judged(activity.Verdict)
	// Attempted counts an attempt to sleep.
	Attempted(Result)
}

// Status is what is known after a step.
type Status struct {
	// View is the Cluster as last seen, and ViewKnown tells whether it was seen at all.
	View      kubernetes.View
	ViewKnown bool
	// Policy and Problems are what its annotations say.
	Policy   idle.Policy
	Problems []idle.Problem
	// State and Decision are the newest of the idle core.
	State    idle.State
	Decision idle.Decision
	// Known tells whether the newest look showed anything; Tally is what it showed, SampledAt when.
	Known     bool
	Tally     activity.Tally
	SampledAt time.Time
	// ListenerConnected tells whether notifications are received.
	ListenerConnected bool
	// Reported tells whether the kernel's reports arrive, and Unsupported that they cannot.
	Reported, Unsupported bool
	// LastPeer is the address of the newest client that nobody had looked at and that counted; invalid without one.
	LastPeer netip.Addr
	// InUse is whether the instance was in use at the newest look, or has been since.
	InUse bool
	// InactiveSlots is the number of logical slots that nobody reads.
	InactiveSlots int64
	// Confirmed is the announcement after which this instance has looked.
	Confirmed string
}
