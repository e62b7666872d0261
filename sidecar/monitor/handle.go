package monitor

import (
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

// Event signals that socket events or notifications have arrived.
type Event struct {
	source  SocketEvents // nil for the control channel
	handled chan<- struct{}
	err     error // set once the source is closed
}

// Change is what an event or a sample changes for the caller.
type Change struct {
	// Used is the time of the newest proof of use, or zero.
	Used time.Time
	// InUse is set if the instance counts as in use until the next sample.
	InUse bool
	// KeepAwake is the keep-awake request received over the channel, or nil.
	KeepAwake *KeepAwakeRequest
	// ListenFailure is why the channel is not being listened to, or nil. A refusal is a *[postgres.RefusedError].
	ListenFailure error
	// Restored is the state of an earlier process, as far as it is proven to be still valid, or nil.
	Restored *idle.State
}

// KeepAwakeRequest is a request to stay awake.
type KeepAwakeRequest struct {
	// Until is when the request expires; zero if all requests are withdrawn.
	Until time.Time
	// Released withdraws the earlier requests.
	Released bool
}

// merge adds a later change.
func (c *Change) merge(next Change) {
	c.Used, c.InUse = later(c.Used, next.Used), c.InUse || next.InUse
	if next.ListenFailure != nil {
		c.ListenFailure = next.ListenFailure
	}
	switch {
	case next.KeepAwake == nil:
	case c.KeepAwake == nil || next.KeepAwake.Released:
		c.KeepAwake = next.KeepAwake
	default: // a shorter request must not cut a longer one short
		c.KeepAwake.Until = later(c.KeepAwake.Until, next.KeepAwake.Until)
	}
}

// Handle handles an event.
func (m *Monitor) Handle(e Event) Change {
	change, hibernate := m.channel.take() // for any event: the mailbox's own is dropped when the queue is full
	m.sessions.used, m.sessions.requested = later(m.sessions.used, change.Used), later(m.sessions.requested, hibernate)
	if change.KeepAwake != nil || !hibernate.IsZero() {
		m.SampleSoon()
	}
	if e.source != nil && e.source == m.sockets.source {
		change.merge(m.handleSockets(e.err))
	}
	if e.handled != nil {
		close(e.handled)
	}
	return change
}

// handleWaiting handles everything that has arrived. What arrived before the end of a sample belongs to that sample.
func (m *Monitor) handleWaiting() (change Change) {
	for {
		select {
		case e := <-m.events:
			change.merge(m.Handle(e))
		default: // the goroutine that waits for the kernel may not have been scheduled yet
			change.merge(m.Handle(Event{source: m.sockets.source}))
			return change
		}
	}
}

// handleSockets handles the socket events that have arrived. failure is why no more will follow, if so.
func (m *Monitor) handleSockets(failure error) (change Change) {
	now := time.Now()
	arrived, err := m.sockets.source.Arrived()
	for _, ended := range arrived {
		change.Used = later(change.Used, m.peers.judge(ended))
	}
	if errors.Is(err, sockets.ErrLost) {
		m.peers.lost(now)
		change.Used = later(change.Used, now)
	} else if failure == nil {
		failure = err
	}
	if failure != nil {
		m.failSockets(failure)
	}
	if change.Used.IsZero() {
		return change
	}
	m.sessions.used = later(m.sessions.used, change.Used)
	if m.sockets.use(now); m.sockets.paused {
		m.peers.noteDirect(now)
		change.InUse = true
	} else {
		m.SampleSoon()
	}
	return change
}

// failSockets stops watching; the next sample starts it again.
func (m *Monitor) failSockets(err error) {
	m.sockets.logger.Warn("cannot receive socket events, and retries", "error", err.Error())
	m.sockets.close()
	m.sessions.gap = true
	m.SampleSoon()
}
