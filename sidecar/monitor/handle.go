package monitor

import (
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

// Event is what arrived: socket events, or the word that the control channel has something.
type Event struct {
	source  SocketEvents // nil: the control channel
	handled chan<- struct{}
	err     error // the source is closed
}

// Change is what the caller has to take in of an event or a sample.
type Change struct {
	// Used is the newest proof of a use; zero: none came to light.
	Used time.Time
	// InUse says that the instance counts as in use until the next sample.
	InUse bool
	// KeepAwake is what was asked for over the channel; nil: nothing.
	KeepAwake *KeepAwakeRequest
	// ListenFailure is why the channel is not listened to; nil: nothing failed. A refusal is a *[postgres.RefusedError].
	ListenFailure error
	// Restored is what an earlier process knew, as far as it is proven to hold still; nil: nothing.
	Restored *idle.State
}

// KeepAwakeRequest asks to stay awake.
type KeepAwakeRequest struct {
	// Until is until when; zero: no longer.
	Until time.Time
}

// merge takes in a change that came after.
func (c *Change) merge(next Change) {
	c.Used, c.InUse = later(c.Used, next.Used), c.InUse || next.InUse
	if next.ListenFailure != nil {
		c.ListenFailure = next.ListenFailure
	}
	switch {
	case next.KeepAwake == nil:
	case c.KeepAwake == nil || next.KeepAwake.Until.IsZero():
		c.KeepAwake = next.KeepAwake
	default: // one who asks for less than another must not take from them
		c.KeepAwake = &KeepAwakeRequest{Until: later(c.KeepAwake.Until, next.KeepAwake.Until)}
	}
}

// Handle takes an event in.
func (m *Monitor) Handle(e Event) Change {
	change := m.handleNotifications() // they may have found the queue full
	if e.source != nil && e.source == m.sockets.source {
		change.merge(m.handleSockets(e.err))
	}
	if e.handled != nil {
		close(e.handled)
	}
	m.status.ListenerConnected = m.channel.connected()
	return change
}

// handleWaiting takes in what has arrived: what came before the end of a sample belongs to it.
func (m *Monitor) handleWaiting() Change {
	change := m.handleNotifications()
	for {
		select {
		case e := <-m.events:
			change.merge(m.Handle(e))
		default:
			if m.sockets.watching() { // the goroutine that waits may not have been scheduled since
				change.merge(m.handleSockets(nil))
			}
			return change
		}
	}
}

// handleSockets takes in the socket events that have arrived, and why no more come, if that is so.
func (m *Monitor) handleSockets(failure error) (change Change) {
	now := time.Now()
	arrived, err := m.sockets.source.Arrived()
	for _, ended := range arrived {
		if m.judge(ended) {
			change.Used = later(change.Used, ended.At)
		}
	}
	if errors.Is(err, sockets.ErrLost) {
		m.parts.Observer.Judged(activity.VerdictLost)
		change.Used = now
	} else if failure == nil {
		failure = err
	}
	if failure != nil {
		m.failSockets(failure)
	}
	if change.Used.IsZero() {
		return change
	}
	m.since.used = later(m.since.used, change.Used)
	if m.sockets.use(now); m.sockets.paused {
		change.InUse = true
	} else {
		m.SampleSoon()
	}
	return change
}

// failSockets stops watching, and has it begun again with the next sample.
func (m *Monitor) failSockets(err error) {
	m.parts.Logger.Warn("receiving socket events failed and is begun again", "error", err.Error())
	m.sockets.close()
	m.status.Reported, m.since.gap = false, true
	m.SampleSoon()
}
