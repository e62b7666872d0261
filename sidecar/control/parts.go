// Package control is the main loop of the sidecar's worker: it monitors the instance, decides, and acts.
//
// One goroutine owns all state. It handles one event after the other: views of the Cluster, the monitor's observations,
// results, and timers. The pure packages decide: idle whether the cluster may sleep, and sleep which actions follow.
// [cluster] carries out the actions that concern the API server and the other instances, [pod] those in this pod, and
// their results are further events; [sessionEnder] ends sessions while the loop waits. No error ends the loop: a
// failure leaves the activity unknown, and unknown is never idle.
package control

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// Parts are the dependencies of the loop.
type Parts struct {
	Monitor    *monitor.Monitor
	Kubernetes Kubernetes
	Siblings   Siblings
	Marker     Marker
	// Instance is PostgreSQL in this pod. Readiness withdraws the pod's readiness; nil if the pod was created without the
	// sidecar's readiness probe.
	Instance  Instance
	Readiness Readiness
	// Requests changes the pod's resource requests; nil if they stay as they are.
	Requests Requests
	Observer Observer
	Counts   Counts
	Logger   *slog.Logger
	// OpenTerminator opens a session that can terminate others.
	OpenTerminator func(ctx context.Context) (Terminator, error)
	// Pod is the name of this instance, and PodUID the UID of the pod.
	Pod, PodUID string
}

// Terminator terminates sessions that do not count.
type Terminator interface {
	Terminate(ctx context.Context, sessions []activity.Terminable) (int, error)
	Close()
}

// Siblings are the sidecars of the other instances.
type Siblings interface {
	// Ask asks for their newest reports or, if sample is set, for a new sample of each.
	Ask(ctx context.Context, instances map[string]netip.Addr, sample bool) []siblingAnswer
}

// Marker tells the preStop hook of PostgreSQL's container that its pod is deleted for sleep.
type Marker interface {
	Leave() error
	Remove() error
}

// Instance is PostgreSQL, as the instance manager runs it.
type Instance interface {
	// Prepare runs a checkpoint and waits until WAL is archived. It returns why PostgreSQL would not stop soon, or "".
	Prepare(ctx context.Context) (idle.Reason, error)
	// Archiver returns why PostgreSQL would wait for its archiver when it stops, or "", and has it write nothing.
	Archiver(ctx context.Context) (idle.Reason, error)
	// EndAtStop waits until PostgreSQL has begun to stop, ends the sessions that never count, and returns how many.
	EndAtStop(ctx context.Context, rules activity.Rules) (int, error)
	// Read returns the running postmaster; the zero value if none runs.
	Read() (doze.Postmaster, error)
	// AwaitStopped returns once no postmaster runs.
	AwaitStopped(ctx context.Context) error
	// AwaitServing returns once a postmaster accepts sessions that no fence will stop any more. before is the postmaster
	// that may have been fenced; the zero value if it has stopped.
	AwaitServing(ctx context.Context, before doze.Postmaster) error
	// AwaitStartFailed returns once no postmaster has run for so long that none will be started.
	AwaitStartFailed(ctx context.Context) error
	// Accepts reports whether PostgreSQL accepts sessions.
	Accepts(ctx context.Context) (bool, error)
	// Stopping reports whether the instance manager is stopping PostgreSQL or has stopped it, if that is known.
	Stopping(ctx context.Context) (stopping, known bool)
}

// Readiness is the readiness of this pod.
type Readiness interface {
	// Withdraw withdraws it until Restore, or until the context ends, and returns once the next readiness probe will fail.
	Withdraw(ctx context.Context) error
	// Held reports whether it has been withdrawn without a break.
	Held() bool
	Restore() error
}

// Requests changes the resource requests of PostgreSQL's container.
type Requests interface {
	// Want sets whether they are to be small, or those of the pod's specification. It does not wait for the change.
	Want(small bool)
	// Refused delivers why the API server refused those of the specification. The change is tried again.
	Refused() <-chan error
	// GrowthPending reports whether the pod has not got those of its specification back after a doze.
	GrowthPending() bool
}

// Kubernetes is what the loop does through the API server. Every patch of the Cluster returns its new state.
type Kubernetes interface {
	Get(ctx context.Context) (kubernetes.View, error)
	Hibernate(ctx context.Context, v kubernetes.View, at time.Time, reason, counts string) (kubernetes.View, error)
	Withdraw(ctx context.Context, v kubernetes.View) (kubernetes.View, error)
	Fence(ctx context.Context, v kubernetes.View, at time.Time) (kubernetes.View, error)
	LiftFence(ctx context.Context, v kubernetes.View) (kubernetes.View, error)
	RemoveAnnouncement(ctx context.Context, v kubernetes.View) (kubernetes.View, error)
	KeepAwake(ctx context.Context, v kubernetes.View, until *string, extends bool) (kubernetes.View, error)
	Annotate(ctx context.Context, v kubernetes.View, key string, value *string) (kubernetes.View, error)
	RunningBackups(ctx context.Context) ([]string, error)
	SuspendBackups(ctx context.Context, at time.Time) (int, error)
	ResumeBackups(ctx context.Context) (kubernetes.Resumed, error)
	Record(ctx context.Context, v kubernetes.View, e kubernetes.Event, at time.Time) error
}

// Observer is notified of what happens, for metrics and reports.
type Observer interface {
	// Publish is called with the newest status after every step.
	Publish(status Status)
	// Attempted counts an attempt to hibernate, or to doze.
	Attempted(result sleep.Result, doze bool)
}
