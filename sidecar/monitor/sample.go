package monitor

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// Sample samples the instance. If the settings forbid it, or if it fails, the observation is unknown. Events that
// arrived before its end belong to it.
func (m *Monitor) Sample(ctx context.Context) (idle.Observation, Change) {
	m.began, m.sampleAt = time.Now(), time.Time{}
	m.endDrain(ctx)
	if !m.settings.Connect || m.Drained() {
		m.Close()
		return m.sessions.unknown(false), Change{}
	}
	if m.held() && !time.Now().Before(m.NextProbe()) && !m.probe(ctx) {
		// Socket events are still received: that keeps no server from shutting down.
		return m.sessions.unknown(m.sockets.watching()), Change{}
	}
	m.watch(ctx)
	sample, err := m.sessions.read(ctx, m.settings.Rules)
	if err != nil {
		if m.channel.running() { // it stays open if the server is only slow, because what it misses would count as use
			m.probe(ctx)
		}
		return m.sessions.unknown(m.sockets.watching()), Change{}
	}
	open, err := m.sockets.openSessions()
	if err != nil {
		m.failSockets(err)
	}
	m.peers.opened(open)
	connecting := m.peers.connecting(sample, open)
	if connecting {
		sample.Blockers = append(slices.Clip(sample.Blockers), idle.ReasonConnecting)
	}
	change := m.handleWaiting()
	if before := m.sessions.newest.Started; before != 0 && before != sample.Started {
		m.checkpoints.resumed = false // an earlier process can have missed sessions of an earlier server only
		m.peers.addrs.restarted(time.UnixMicro(sample.Started))
	}
	change.Restored = m.checkpoints.restore(sample, m.sockets.watching() && m.sessions.used.IsZero())
	if change.Restored != nil && !change.Restored.IdleSince.IsZero() {
		m.sessions.gap = false
	}
	m.peers.sampled(sample.Tally.Peers())
	observation := m.sessions.observe(sample, m.sockets.reported())
	observation.Announced = m.peers.addrs.sessionAwaited()
	m.sessions.status.SessionMissed = m.checkpoints.resumed || m.peers.addrs.sessionMissed()
	database := m.settings.Database
	if m.settings.quiet() || m.Drained() {
		database = ""
	}
	m.channel.listen(ctx, database)
	// With socket events the next sample is far away, and until then an open session would delay a shutdown.
	m.sessions.held = !observation.Reported && !m.settings.quiet()
	if !m.held() || m.Drained() { // drained during the sample
		m.CloseSessions()
	}
	m.sampleAt = time.Time{} // what has arrived belongs to this sample
	// A session that has ended since PostgreSQL answered is in use according to the sample.
	if ended := !change.Used.IsZero() && len(observation.InUse) != 0; ended || connecting {
		m.SampleSoon()
	}
	return observation, change
}

// errDrained is returned after a preStop hook had the sessions closed.
var errDrained = errors.New("the sessions are closed because the pod is about to stop")

// SampleOnce takes a sample outside the observations, even if the settings permit no session, and keeps no session
// open. It fails if PostgreSQL does not answer or while drained.
func (m *Monitor) SampleOnce(ctx context.Context) (postgres.Sample, error) {
	if m.Drained() {
		return postgres.Sample{}, errDrained
	}
	sample, err := m.sessions.read(ctx, m.settings.Rules)
	m.sessions.sampler.Close()
	if err == nil {
		m.sessions.status.SampledAt = sample.Ended
	}
	return sample, err
}
