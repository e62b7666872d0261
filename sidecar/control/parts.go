// Package control is the loop of the sidecar's worker: it looks, decides, and acts.
//
// One goroutine owns all state. Everything outside is behind small interfaces, so that whole lives of a cluster run in the
// tests without a server and without waiting. The loop never ends on an error: what fails is unknown, and unknown is never
// idle. Database sessions are held only while the cluster is enabled, healthy and awake and the server accepts sessions;
// they are closed at once when any of that ends, since an open session makes PostgreSQL's smart shutdown wait.
package control

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// Sampler looks at the sessions of the instance.
type Sampler interface {
	Sample(ctx context.Context, cluster activity.Cluster) (postgres.Sample, error)
	Close()
}

// Server tells whether PostgreSQL turns new sessions away.
type Server interface {
	ShuttingDown(ctx context.Context) (bool, error)
}

// Listener listens to the control channel until the context ends, and then closes its session at once.
type Listener interface {
	Run(ctx context.Context)
	Connected() bool
}

// Listen makes a listener for a database.
type Listen func(database string, notify func(postgres.Kind, time.Time), failed func(error)) Listener

// Kubernetes is what the loop does through the API server.
type Kubernetes interface {
	Get(ctx context.Context) (kubernetes.View, error)
	Hibernate(ctx context.Context, v kubernetes.View, at time.Time, reason string) error
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
	// ResultError says that the API server or the database failed us.
	ResultError Result = "error"
)

// Results is the closed list of results.
func Results() []Result { return []Result{ResultSuccess, ResultAborted, ResultConflict, ResultError} }

// Observer is told what happens; it serves metrics and reports.
type Observer interface {
	// Publish gives the newest status, after every step.
	Publish(Status)
	// Sampled counts a look, how long it took and whether it failed.
	Sampled(took time.Duration, err error)
	// Notified counts a notification.
	Notified(postgres.Kind)
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
}
