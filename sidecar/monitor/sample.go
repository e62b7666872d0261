package monitor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// Sample samples the instance. If the settings forbid it, or if it fails, the observation is unknown. Events that arrived
// before its end belong to it.
func (m *Monitor) Sample(ctx context.Context) (idle.Observation, Change) {
	m.began, m.sampleAt = time.Now(), time.Time{}
	m.endDrain(ctx)
	if !m.mayConnect() {
		m.release()
		m.sockets.close()
		return m.unknown(), Change{}
	}
	if m.probeDue() && !m.mayHold(ctx) { // what the kernel reports keeps no server from shutting down
		m.release()
		return m.unknown(), Change{}
	}
	m.watch(ctx)
	sample, err := m.read(ctx)
	if err != nil {
		if m.channel.running() && !m.mayHold(ctx) { // else it is only slow, and what the channel missed would count as use
			m.release()
		}
		return m.unknown(), Change{}
	}
	open := m.openSessions()
	m.peers.opened(open)
	connecting := m.peers.connecting(sample, open)
	if connecting {
		sample.Blockers = append(slices.Clip(sample.Blockers), idle.ReasonConnecting)
	}
	change := m.handleWaiting()
	change.Restored = m.restore(sample)
	observation := m.observe(sample)
	m.listen(ctx)
	if m.kept = !observation.Reported && !m.quiet(); !m.held() {
		m.parts.Sampler.Close() // the next sample is far away, and until a shutdown is noticed an open session would delay it
	}
	m.status.ListenerConnected = m.channel.connected()
	m.sampleAt = time.Time{} // what has arrived belongs to this sample
	if connecting {
		m.SampleSoon()
	}
	return observation, change
}

// probeDue reports whether a session is open and the server has not been probed recently.
func (m *Monitor) probeDue() bool {
	at := m.NextProbe()
	return !at.IsZero() && !time.Now().Before(at)
}

// release closes every session, and waits until the channel's is closed.
func (m *Monitor) release() {
	m.CloseSessions()
	m.stopListening()
}

// unknown returns an unknown observation.
func (m *Monitor) unknown() idle.Observation {
	m.status.Known, m.status.ServerBlockers = false, nil
	m.newest, m.since.gap = newest{started: m.newest.started}, m.since.gap || !m.sockets.watching()
	m.kept, m.status.ListenerConnected = false, m.channel.connected()
	return idle.Observation{Unknown: true, Reported: m.sockets.watching()}
}

// read samples the sessions.
func (m *Monitor) read(ctx context.Context) (postgres.Sample, error) {
	start := time.Now()
	sample, err := m.parts.Sampler.Sample(ctx, m.settings.Rules)
	m.parts.Observer.Sampled(time.Since(start), err)
	m.logFailure(err)
	if err == nil && (m.Drained() || m.quiet()) { // drained while connecting, or sessions must not be kept
		m.CloseSessions()
	}
	return sample, err
}

// openSessions returns the TCP sessions that are open; none if socket events are not received.
func (m *Monitor) openSessions() []activity.Open {
	if !m.sockets.watching() {
		return nil
	}
	open, err := m.sockets.source.Open()
	if err != nil {
		m.failSockets(err)
		return nil
	}
	return open
}

// observe combines a sample with what has happened since the previous one.
func (m *Monitor) observe(sample postgres.Sample) idle.Observation {
	m.peers.sampled(sample.Tally.Peers())
	before := m.newest
	seen := idle.Observation{
		Began: sample.Began, Ended: sample.Ended, Started: time.UnixMicro(sample.Started), Checkpointed: time.UnixMicro(sample.Checkpointed),
		InUse: sample.Tally.InUse(), Used: m.since.used,
		Gap:      m.since.gap || before.started != 0 && before.started != sample.Started,
		Reported: m.sockets.reported(), Local: sample.Tally.Local(), Scheduler: sample.Scheduler,
		Requested: m.requested, Blockers: sample.Blockers, Announced: m.parts.ClientAddrs.sessionAwaited(),
	}
	if !seen.Reported && before.ledger != nil && !before.ledger.Same(sample.Ledger) {
		seen.Used = sample.Ended
	}
	changed := newestChange(sample.Tally.Terminable())
	if ago, ok := sample.Tally.LastUse(); ok {
		last := sample.Ended.Add(-ago)
		// The server's clock may have been set: a change since the previous sample is not older than that sample.
		if changed != before.changed {
			last = later(last, before.ended)
		}
		seen.Used = later(seen.Used, last)
	}
	m.newest = newest{
		ledger: sample.Ledger, started: sample.Started, changed: changed, ended: sample.Ended, terminable: sample.Tally.Terminable(),
	}
	m.since, m.requested = since{}, time.Time{}
	m.status.SessionMissed = m.resumed || m.parts.ClientAddrs.sessionMissed()
	m.status.Known, m.status.Tally, m.status.SampledAt = true, sample.Tally, sample.Ended
	m.status.ServerBlockers, m.status.Scheduler, m.status.InactiveSlots = sample.Blockers, sample.Scheduler, sample.InactiveSlots
	return seen
}

// newestChange returns the newest state change of the sessions judged by their idle time.
func newestChange(sessions []activity.Terminable) int64 {
	newest := int64(0)
	for _, s := range sessions {
		if s.Idle && !s.Infrastructure {
			newest = max(newest, s.Changed)
		}
	}
	return newest
}

// logFailure logs an error unless the previous sample failed with the same one.
func (m *Monitor) logFailure(err error) {
	message := ""
	if err != nil {
		message = err.Error()
	}
	if message == m.failure {
		return
	}
	m.failure = message
	if err != nil {
		m.parts.Logger.Warn("cannot sample the sessions", "error", message)
	} else {
		m.parts.Logger.Info("the sessions can be sampled again")
	}
}

// SampleOnce takes a sample outside the observations, even if the settings permit no session, and keeps no session open. It
// fails if PostgreSQL does not answer or while drained.
func (m *Monitor) SampleOnce(ctx context.Context) (postgres.Sample, error) {
	if m.Drained() {
		return postgres.Sample{}, errDrained
	}
	sample, err := m.read(ctx)
	m.parts.Sampler.Close()
	if err == nil {
		m.status.SampledAt = sample.Ended
	}
	return sample, err
}

// errDrained is returned after a preStop hook had the sessions closed.
var errDrained = errors.New("the sessions are closed since the pod is about to stop")
