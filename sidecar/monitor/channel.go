package monitor

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// channel is the state of the current listener, if any.
type channel struct {
	listener Listener
	database string
	done     chan struct{}
	// earlier is set once a listener of this process has listened: a later one may have missed notifications.
	earlier bool
}

// connected reports whether notifications are received.
func (c *channel) connected() bool { return c.listener != nil && c.listener.Connected() }

// running reports whether the listener's goroutine is still running.
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

// listen starts, restarts or stops the listener according to the settings, after a successful sample.
func (m *Monitor) listen(ctx context.Context) {
	database := m.settings.Database
	if m.channel.running() && m.channel.database == database {
		return
	}
	m.stopListening()
	if database == "" || m.quiet() || m.Drained() {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the listener outlives the sample
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
	if m.Drained() { // drained while the listener was starting
		cancel()
	}
}

// stopListening stops the listener and waits until its session is closed.
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

// malformedEvery limits the log, because every role may send what is malformed. All of it is counted.
const malformedEvery = time.Minute

// handleNotifications handles the notifications in the mailbox.
func (m *Monitor) handleNotifications() Change {
	mail := m.mailbox.take()
	for _, kind := range postgres.Kinds() {
		for range mail.counts[kind] {
			m.parts.Observer.Notified(kind)
		}
	}
	if now := time.Now(); mail.malformed != nil && now.Sub(m.logged) >= malformedEvery {
		m.logged = now
		m.parts.Logger.Warn("ignored an invalid notification",
			"channel", postgres.Channel, "error", mail.malformed.Error())
	}
	change := Change{Used: mail.used, KeepAwake: mail.keepAwake, ListenFailure: mail.failure}
	if !mail.backlog.IsZero() {
		// The first listener of this process has missed nothing: either the clock has only just started, or it is proven that no
		// client was connected that could have sent a notification.
		if m.channel.earlier {
			change.Used = later(change.Used, mail.backlog)
			m.parts.Logger.Info("notifications may have been missed, which counts as a use", "channel", postgres.Channel)
		}
		m.channel.earlier = true
	}
	m.since.used = later(m.since.used, change.Used)
	m.requested = later(m.requested, mail.hibernate)
	if mail.keepAwake != nil || !mail.hibernate.IsZero() {
		m.SampleSoon()
	}
	if mail.failure != nil {
		m.parts.Logger.Warn("cannot listen to the control channel", "channel", postgres.Channel, "error", mail.failure.Error())
	}
	return change
}
