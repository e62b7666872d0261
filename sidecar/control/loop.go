package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// Loop decides and acts for one instance.
type Loop struct {
	parts   Parts
	views   chan kubernetes.View
	events  chan event
	running sync.WaitGroup // the tasks

	status   Status
	machine  sleep.Machine
	timers   timers
	attempt  attempt
	doze     dozeState
	due      time.Time // when the next sample is due; zero: none
	cluster  cluster
	pod      pod
	sessions sessionEnder
	reporter reporter
	counts   counts
}

// New returns a loop for Run.
func New(parts Parts) *Loop {
	return &Loop{
		parts: parts, status: Status{Pod: parts.Pod},
		views:  make(chan kubernetes.View, 1), // only the newest view matters
		events: make(chan event), timers: timers{},
		cluster: cluster{Parts: parts}, sessions: sessionEnder{Parts: parts},
		pod:      pod{Parts: parts, ends: ends{of: map[sleep.Action]context.CancelFunc{}}},
		reporter: reporter{observer: parts.Observer, recorder: recorder{pod: parts.Pod, logger: parts.Logger, record: parts.Kubernetes.Record}},
		counts:   counts{store: parts.Counts, logger: parts.Logger},
	}
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
	defer l.pod.running.Wait()
	defer l.running.Wait()
	defer l.reporter.unwritten.Wait()
	stop := context.AfterFunc(ctx, l.parts.Monitor.CloseSessions)
	defer stop()
	defer l.parts.Monitor.Close()
	stopSessions := context.AfterFunc(ctx, l.sessions.close)
	defer stopSessions()
	defer l.sessions.close()
	l.counts.load()
	defer l.counts.save()
	l.status.Decision = idle.Decision{Reason: idle.ReasonUnknown, Blockers: []idle.Reason{idle.ReasonUnknown}}
	l.status.WhatIf = l.counts.newest
	l.parts.Observer.Publish(l.status)
	l.pod.guardStart(ctx)
	defer l.pod.endGuard()
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
		case e := <-l.events:
			l.take(ctx, e)
		case err := <-growthRefused:
			l.reporter.growthRefused(ctx, l.status.View, err)
		case <-timer.C:
			l.tick(ctx)
		}
		timer.Reset(time.Until(l.next()))
	}
}

// event is what a task has brought about, or another instance's request.
type event interface{ event() }

func (completed) event()     {}
func (annotated) event()     {}
func (backupsListed) event() {}
func (startFailed) event()   {}
func (sampleRequest) event() {}

// task waits for something outside of the loop. What it returns is an event of the loop.
type task func(ctx context.Context) event

// run runs a task concurrently, unless it is nil.
func (l *Loop) run(ctx context.Context, t task) {
	if t == nil {
		return
	}
	l.running.Go(func() {
		e := t(ctx)
		select {
		case l.events <- e:
		case <-ctx.Done():
		}
	})
}

// take handles an event.
func (l *Loop) take(ctx context.Context, e event) {
	switch e := e.(type) {
	case completed:
		l.completed(ctx, e)
	case annotated:
		l.annotated(ctx, e)
	case backupsListed:
		if l.cluster.backups.set(e.running); !e.running {
			l.parts.Monitor.SampleSoon()
		}
	case startFailed:
		if e.err == nil && e.watch.Err() == nil {
			l.run(ctx, l.cluster.recordRestartFailed(l.status.View))
		}
	case sampleRequest:
		if !slices.Contains(slices.Collect(maps.Values(l.status.View.Addresses)), e.asker) {
			e.done <- false
			return
		}
		if l.status.View.Hibernating { // no session may be held, and use only matters until the operator begins
			sample, err := l.parts.Monitor.SampleOnce(ctx)
			l.status.Known = err == nil
			l.status.InUse = err == nil && sample.Tally.HasClients()
			l.parts.Observer.Publish(l.status)
		} else {
			l.step(ctx)
		}
		e.done <- true
	}
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

// sampleDue returns when the instance must be sampled or, if it dozes, when the cluster is to hibernate; zero if only
// an event can require that.
func (l *Loop) sampleDue() time.Time {
	switch {
	case !l.status.ViewKnown:
		return time.Time{}
	case l.doze.fenced:
		return l.doze.hibernatesAt(l.machine.Phase(), &l.status, &l.cluster.clock)
	}
	return earliest(l.due, l.cluster.keepAwakeDue(l.status.View), l.parts.Monitor.NextSample())
}

// tick does what is due.
func (l *Loop) tick(ctx context.Context) {
	now := time.Now()
	if timer, ok := l.timers.expired(now); ok {
		l.advance(ctx, sleep.Timeout{Timer: timer})
		return
	}
	switch due := l.sampleDue(); {
	case due.IsZero() || now.Before(due):
		l.parts.Monitor.Probe(ctx)
	case !l.doze.fenced:
		l.step(ctx)
	default:
		l.doze.retry = now.Add(hibernateRetry)
		if l.parse(now); l.status.mayHibernateDozing(now) {
			l.advance(ctx, sleep.Observed{})
		}
	}
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
