package monitor

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// channel is the control channel: the current listener, if any, and what it has received.
type channel struct {
	listenTo Listen
	observer Observer
	logger   *slog.Logger

	mailbox  mailbox
	listener Listener // nil while stopped
	database string
	done     chan struct{}
	// earlier is set once a listener of this process has listened: a later one may have missed notifications.
	earlier bool
	logged  time.Time // when a malformed notification was last logged
	stop    atomic.Pointer[context.CancelFunc]
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

// listen makes the listener listen in a database, or in none.
func (c *channel) listen(ctx context.Context, database string) {
	if c.running() && c.database == database {
		return
	}
	c.close()
	if database == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the listener outlives the sample
	c.stop.Store(&cancel)
	listener, done := c.listenTo(database, c.mailbox.post, c.mailbox.fail), make(chan struct{})
	c.listener, c.database, c.done = listener, database, done
	go func() {
		defer close(done)
		listener.Run(ctx)
	}()
}

// cancel makes the listener close its session. It may be called from any goroutine.
func (c *channel) cancel() {
	if stop := c.stop.Load(); stop != nil {
		(*stop)()
	}
}

// close stops the listener and waits until its session is closed.
func (c *channel) close() {
	if c.cancel(); c.listener != nil {
		<-c.done
		c.listener = nil
	}
}

// malformedEvery limits the log, because every role may send what is malformed. All of it is counted.
const malformedEvery = time.Minute

// take returns what the notifications in the mailbox change, and the time of the newest request to sleep.
func (c *channel) take() (change Change, hibernate time.Time) {
	mail := c.mailbox.take()
	for _, kind := range postgres.Kinds() {
		for range mail.counts[kind] {
			c.observer.Notified(kind)
		}
	}
	if now := time.Now(); mail.malformed != nil && now.Sub(c.logged) >= malformedEvery {
		c.logged = now
		c.logger.Warn("ignored an invalid notification", "channel", postgres.Channel, "error", mail.malformed.Error())
	}
	change = Change{Used: mail.used, KeepAwake: mail.keepAwake, ListenFailure: mail.failure}
	if !mail.backlog.IsZero() {
		// The first listener of this process has missed nothing: either the clock has only just started, or it is proven that
		// no client was connected that could have sent a notification.
		if c.earlier {
			change.Used = later(change.Used, mail.backlog)
			c.logger.Info("notifications may have been missed, which counts as a use", "channel", postgres.Channel)
		}
		c.earlier = true
	}
	if mail.failure != nil {
		c.logger.Warn("cannot listen to the control channel", "channel", postgres.Channel, "error", mail.failure.Error())
	}
	return change, mail.hibernate
}
