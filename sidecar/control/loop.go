package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// Loop decides and acts for one instance.
type Loop struct {
	parts    Parts
	views    chan kubernetes.View
	answers  chan func()
	requests chan sampleRequest
	running  sync.WaitGroup // the loop's other goroutines

	status    Status
	machine   sleep.Machine
	timers    timers
	attempt   attempt
	ender     sessionEnder
	asleep    atomic.Pointer[activity.Rules] // by which Drain ends sessions, while our hibernation is on; nil otherwise
	served    served
	recorder  recorder
	reporter  reporter
	readiness readiness
	backups   backups
	keepAwake keepAwakeRequest
	doze      dozeState
	// preparation may be canceled from any goroutine.
	preparation preparation
	quietUntil  time.Time // until then no session is held
	clock       apiClock
	due         time.Time // when the next sample is due; zero: none
}

// New returns a loop for Run.
func New(parts Parts) *Loop {
	l := &Loop{
		parts: parts, status: Status{Pod: parts.Pod},
		views:   make(chan kubernetes.View, 1), // only the newest view matters
		answers: make(chan func()), requests: make(chan sampleRequest),
		timers: timers{},
		ender:  sessionEnder{open: parts.OpenTerminator},
		recorder: recorder{
			pod: parts.Pod, logger: parts.Logger, record: parts.Kubernetes.Record,
		},
		readiness: readiness{of: parts.Readiness, logger: parts.Logger},
	}
	l.reporter = reporter{logger: parts.Logger, observer: parts.Observer, recorder: &l.recorder}
	return l
}

// Deliver passes the newest state of the Cluster to the loop. Only one goroutine may call it.
func (l *Loop) Deliver(v kubernetes.View) {
	select {
	case <-l.views:
	default:
	}
	l.views <- v
}

// Run runs until the context ends. It then closes every session at once.
func (l *Loop) Run(ctx context.Context) {
	defer l.running.Wait()
	defer l.readiness.running.Wait()
	defer l.recorder.unwritten.Wait()
	stop := context.AfterFunc(ctx, l.parts.Monitor.CloseSessions)
	defer stop()
	defer l.parts.Monitor.Close()
	stopEnder := context.AfterFunc(ctx, l.ender.close)
	defer stopEnder()
	defer l.ender.close()
	l.status.Decision = idle.Decision{Reason: idle.ReasonUnknown, Blockers: []idle.Reason{idle.ReasonUnknown}}
	l.parts.Observer.Publish(l.status)
	guarding, endGuard := context.WithCancel(ctx)
	defer endGuard()
	l.doze.endGuard = endGuard
	l.guardStart(guarding, false)
	var growthRefused <-chan error
	if l.parts.Requests != nil {
		growthRefused = l.parts.Requests.Refused()
	}
	timer := time.NewTimer(time.Until(l.next()))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-l.views:
			l.viewed(ctx, v)
		case e := <-l.parts.Monitor.Events():
			l.handle(ctx, e)
		case take := <-l.answers:
			take()
		case err := <-growthRefused:
			l.recorder.growthRefused(ctx, l.status.View, err)
		case request := <-l.requests:
			l.sampleFor(ctx, request)
		case <-timer.C:
			l.tick(ctx)
		}
		timer.Reset(time.Until(l.next()))
	}
}

// begin runs a function concurrently. The loop calls the function that it returns, unless the loop has ended.
func (l *Loop) begin(ctx context.Context, run func(context.Context) func()) {
	l.running.Go(func() {
		take := run(ctx)
		select {
		case l.answers <- take:
		case <-ctx.Done():
		}
	})
}

// maxWait is how long the loop waits for an event if nothing is due.
const maxWait = time.Hour

// next returns when the loop has something to do.
func (l *Loop) next() time.Time {
	at := earliest(append(slices.Collect(maps.Values(l.timers)), l.sampleDue(), l.parts.Monitor.NextProbe())...)
	if at.IsZero() {
		return time.Now().Add(maxWait)
	}
	return at
}

// sampleDue returns when the instance must be sampled; zero if only on an event.
func (l *Loop) sampleDue() time.Time {
	switch {
	case !l.status.ViewKnown:
		return time.Time{}
	case l.fenced():
		return l.doze.hibernatesAt(l.machine.Phase(), &l.status)
	}
	return earliest(l.due, l.parts.Monitor.NextSample())
}

// tick does what is due.
func (l *Loop) tick(ctx context.Context) {
	if l.expire(ctx) {
		return
	}
	if due := l.sampleDue(); !due.IsZero() && !time.Now().Before(due) {
		if l.fenced() {
			l.hibernateDozing(ctx)
			return
		}
		l.step(ctx)
		return
	}
	l.parts.Monitor.Probe(ctx)
}

// earliest returns the earliest of the times; zero is never.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, at := range times {
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	return first
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
