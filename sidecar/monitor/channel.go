package monitor

import (
	"context"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// channel is the listener that runs, if one does.
type channel struct {
	listener Listener
	database string
	done     chan struct{}
	// earlier says that a listener of this process has listened before, so that the next may have missed something.
	earlier bool
}

// connected reports whether notifications are received.
func (c *channel) connected() bool { return c.listener != nil && c.listener.Connected() }

// running reports whether the listener's goroutine has not ended.
func (c *channel) running() bool {
	if c.listener == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// listen starts, moves or stops the listener as the settings ask, after a sample that succeeded.
func (m *Monitor) listen(ctx context.Context) {
	database := m.settings.Database
	if m.channel.running() && m.channel.database == database {
		return
	}
	m.stopListening()
	if database == "" || m.quiet() || m.Drained() {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the sample
	m.mutex.Lock()
	m.stopChannel = cancel
	m.mutex.Unlock()
	listener := m.parts.Listen(database, m.mailbox.post, m.mailbox.fail)
	done := make(chan struct{})
	m.channel = channel{listener: listener, database: database, done: done, earlier: m.channel.earlier}
	go func() {
		defer close(done)
		listener.Run(ctx)
	}()
	if m.Drained() { // drained while it was being started
		cancel()
	}
}

// stopListening ends the listener and waits until its session is closed.
func (m *Monitor) stopListening() {
	m.mutex.Lock()
	stop := m.stopChannel
	m.stopChannel = func() {}
	m.mutex.Unlock()
	stop()
	if m.channel.listener != nil {
		<-m.channel.done
		m.channel = channel{earlier: m.channel.earlier}
	}
}

// handleNotifications takes in what came over the channel.
func (m *Monitor) handleNotifications() Change {
	mail := m.mailbox.take()
	for _, kind := range postgres.Kinds() {
		for range mail.counts[kind] {
			m.parts.Observer.Notified(kind)
		}
	}
	if mail.malformed != nil {
		m.parts.Logger.Warn("a notification is not understood and was passed over",
			"channel", postgres.Channel, "error", mail.malformed.Error())
	}
	change := Change{Used: mail.used, KeepAwake: mail.keepAwake, ListenFailure: mail.failure}
	if !mail.backlog.IsZero() {
		// The first listener of this process has missed nothing: the clock has just started, or it was proven that nobody was
		// there who could have notified.
		if m.channel.earlier {
			change.Used = later(change.Used, mail.backlog)
		}
		m.channel.earlier = true
	}
	m.since.used = later(m.since.used, change.Used)
	m.requested = later(m.requested, mail.hibernate)
	if mail.keepAwake != nil || !mail.hibernate.IsZero() {
		m.SampleSoon()
	}
	if mail.failure != nil {
		m.parts.Logger.Warn("the control channel cannot be listened to", "channel", postgres.Channel, "error", mail.failure.Error())
	}
	return change
}
