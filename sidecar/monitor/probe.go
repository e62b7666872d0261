package monitor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

const (
	// probeEvery is how often the server is asked whether it is shutting down while a session is open: an in-place restart
	// waits for that session, and nothing else reveals the restart.
	probeEvery = 2 * time.Second
	// maximumTimeouts is the number of consecutive timeouts after which the server counts as shutting down. If so slow a
	// server does shut down, it waits for our sessions for about seven seconds: three probe intervals and the last
	// timeout. If two samples fail meanwhile, it waits for ten.
	maximumTimeouts = 3
	// drainLasts is when a drain ends by itself if PostgreSQL still accepts sessions: the preStop hook ran, but the pod
	// was not stopped.
	drainLasts = time.Minute
)

// held reports whether a session is open.
func (m *Monitor) held() bool { return m.sessions.held || m.channel.running() }

// Probe asks the server whether it is shutting down. If so, or if it is gone, it closes every session.
func (m *Monitor) Probe(ctx context.Context) {
	if m.held() && !m.probe(ctx) {
		m.sampleAt = time.Now()
	}
}

// probe reports whether sessions may be held, and closes them if not. Closing the control channel of a silent server
// counts as use at once, because notifications are missed until it listens again.
func (m *Monitor) probe(ctx context.Context) bool {
	hold, silent := m.prober.mayHold(ctx)
	if silent && m.channel.connected() {
		m.sessions.used = time.Now()
	}
	if !hold {
		m.CloseSessions()
		m.channel.close()
	}
	return hold
}

// prober asks the server whether it is shutting down.
type prober struct {
	server   Server
	logger   *slog.Logger
	at       time.Time // when it was last asked
	timeouts int       // how many times in a row it did not answer in time
}

// mayHold reports whether sessions may be held: the server accepts sessions, or has not timed out too often. After too
// many timeouts in a row, the server is silent. One timeout must not close the control channel: missed notifications
// would count as use, so that a busy node would keep its clusters awake.
func (p *prober) mayHold(ctx context.Context) (hold, silent bool) {
	accepts, err := p.accepts(ctx)
	if !errors.Is(err, postgres.ErrTimeout) {
		p.timeouts = 0
		return accepts, false
	}
	if p.timeouts++; p.timeouts < maximumTimeouts {
		return true, false
	}
	p.timeouts = 0 // a server that accepts another session is not shutting down
	p.logger.Warn("the server may be shutting down because it does not answer; its sessions are closed", "error", err.Error())
	return false, true
}

// accepts reports whether the server accepts sessions.
func (p *prober) accepts(ctx context.Context) (bool, error) {
	p.at = time.Now()
	refusing, err := p.server.ShuttingDown(ctx)
	if err != nil {
		p.logger.Debug("cannot ask the server whether it is shutting down", "error", err.Error())
	}
	return err == nil && !refusing, err
}

// CloseSessions closes every database session at once. It may be called from any goroutine.
func (m *Monitor) CloseSessions() {
	m.channel.cancel()
	m.sessions.sampler.Close()
}

// Drain closes every database session at once and keeps them closed. It may be called from any goroutine.
func (m *Monitor) Drain() {
	m.drained.Store(new(time.Now()))
	m.CloseSessions()
}

// Drained reports whether sessions are kept closed.
func (m *Monitor) Drained() bool { return m.drained.Load() != nil }

// endDrain ends a drain older than drainLasts if PostgreSQL still accepts sessions.
func (m *Monitor) endDrain(ctx context.Context) {
	since := m.drained.Load()
	if since == nil || time.Since(*since) < drainLasts {
		return
	}
	if accepts, _ := m.prober.accepts(ctx); accepts && m.drained.CompareAndSwap(since, nil) {
		m.prober.logger.Info("the drain has ended: PostgreSQL still accepts sessions")
	}
}
