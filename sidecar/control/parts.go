// Package control is the loop of the sidecar's worker: it has the instance monitored, decides, and acts.
//
// One goroutine owns all state: it takes in views of the Cluster, what the monitor observes, the answers to what it asked for,
// and the passing of time, gives them to the pure parts (idle decides, sleep says what to do), and carries out what those
// ask for. Requests to the API server and for samples of the other instances run beside it, and their answers come back to it. The loop never ends on an error: what fails is unknown, and unknown is never idle.
package control

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// Parts are what the loop works with.
type Parts struct {
	Monitor    *monitor.Monitor
	Kubernetes Kubernetes
	Siblings   Siblings
	Marker     Marker
	Observer   Observer
	Logger     *slog.Logger
	// OpenTerminator opens a session that may end others.
	OpenTerminator func(ctx context.Context) (Terminator, error)
	// Pod is the name of this instance, and PodUID the UID of the pod.
	Pod, PodUID string
}

// Terminator ends sessions that do not count.
type Terminator interface {
	Terminate(ctx context.Context, sessions []activity.Terminable) (int, error)
	Close()
}

// Siblings are the sidecars of the other instances.
type Siblings interface {
	// Ask asks what they last saw, Sample what they see now.
	Ask(ctx context.Context, instances map[string]netip.Addr) []siblings.Answer
	Sample(ctx context.Context, instances map[string]netip.Addr) []siblings.Answer
}

// Marker shows the preStop hook of PostgreSQL's container that its pod is deleted to sleep.
type Marker interface {
	Leave() error
	Remove() error
}

// Kubernetes is what the loop does through the API server. Every patch of the Cluster returns it as it is then.
type Kubernetes interface {
	Get(ctx context.Context) (kubernetes.View, error)
	Hibernate(ctx context.Context, v kubernetes.View, at time.Time, reason string) (kubernetes.View, error)
	Withdraw(ctx context.Context, v kubernetes.View) (kubernetes.View, error)
	Annotate(ctx context.Context, v kubernetes.View, key string, value *string) (kubernetes.View, error)
	RunningBackups(ctx context.Context) ([]string, error)
	SuspendBackups(ctx context.Context, at time.Time) (int, error)
	ResumeBackups(ctx context.Context) (kubernetes.Resumed, error)
	Record(ctx context.Context, v kubernetes.View, e kubernetes.Event, at time.Time)
}

// Observer takes in what happens, for metrics and reports.
type Observer interface {
	// Publish gives the newest status, after every step.
	Publish(status Status)
	// Attempted counts an attempt to sleep.
	Attempted(result sleep.Result)
}

// Status is what is known after a step.
type Status struct {
	// Status is what the monitor knows.
	monitor.Status
	// View is the Cluster as last seen, and ViewKnown reports whether it was seen at all.
	View      kubernetes.View
	ViewKnown bool
	// Policy and Problems are what its annotations say.
	Policy   idle.Policy
	Problems []idle.Problem
	// State and Decision are the newest of the idle core.
	State    idle.State
	Decision idle.Decision
	// InUse is whether the instance was in use at the newest sample, or has been since.
	InUse bool
}
