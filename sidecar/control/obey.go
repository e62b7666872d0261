package control

import (
	"context"
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

const (
	// wishesApart is the least time between two annotations that the channel asks for.
	wishesApart = 5 * time.Second
	// lastWishRetry bounds the wait between two tries to write one.
	lastWishRetry = time.Minute
)

// wish is what was asked for over the channel and is not in the Cluster's annotation yet.
type wish struct {
	pending bool
	until   time.Time // zero: take the annotation away
	written time.Time // when one was last written
	retry   retry
}

// apply makes the wish hold before it is written.
func (w *wish) apply(policy *idle.Policy) {
	if w.pending {
		policy.KeepAwakeUntil = w.until
	}
}

// obey does what has been asked for over the channel.
func (l *Loop) obey(ctx context.Context) {
	asked := l.read()
	if asked.failure != nil {
		l.listenFailed(ctx, asked.failure)
	}
	if connected := l.listening.connected(); connected != l.status.ListenerConnected { // the next look may be a minute away
		l.status.ListenerConnected = connected
		l.parts.Observer.Publish(l.status)
	}
	if asked.asks {
		l.parse(time.Now())
		l.grant(ctx)
	}
	if asked.asks || !asked.hibernate.IsZero() {
		l.soon()
	}
}

// readWaiting takes in what has arrived: what came before the end of a look belongs to it.
func (l *Loop) readWaiting() {
	if asked := l.read(); asked.failure != nil {
		l.mailbox.fail(asked.failure) // for later: an Event takes time
	}
}

// read takes the mail in.
func (l *Loop) read() mail {
	asked := l.mailbox.take()
	for _, kind := range postgres.Kinds() {
		for range asked.counts[kind] {
			l.parts.Observer.Notified(kind)
		}
	}
	if asked.malformed != nil {
		l.parts.Logger.Warn("a notification is not understood and was not obeyed",
			"channel", postgres.Channel, "error", asked.malformed.Error())
	}
	l.memory.used = later(l.memory.used, asked.used)
	if !asked.backlog.IsZero() {
		l.own[l.listening.database] += int64(asked.counts[postgres.KindBacklog])
		// The first listener of this worker has missed nothing: the clock has just started, or it was proven that nobody was
		// there who could have notified.
		if l.listening.earlier {
			l.memory.used = later(l.memory.used, asked.backlog)
		}
		l.listening.earlier = true
	}
	l.requested = later(l.requested, asked.hibernate)
	if asked.asks {
		l.wish.pending, l.wish.until, l.wish.retry = true, asked.until, retry{}
		if !asked.until.IsZero() { // one who asks for less than another must not take from them
			l.wish.until = later(l.wish.until, l.status.Policy.KeepAwakeUntil)
		}
	}
	return asked
}

// grant writes the wish into the Cluster's annotation, where it survives this pod, and people see it.
func (l *Loop) grant(ctx context.Context) {
	now := time.Now()
	if !l.wish.pending || l.wish.retry.tooSoon(now) || l.status.View.CurrentPrimary != l.parts.Pod {
		return
	}
	var value *string
	if !l.wish.until.IsZero() {
		text := l.wish.until.UTC().Format(time.RFC3339)
		value = &text
	}
	is, set := l.status.View.Annotations[idle.KeyKeepAwakeUntil]
	if !set && value == nil || set && value != nil && is == *value {
		l.wish.pending = false
		return
	}
	if now.Sub(l.wish.written) < wishesApart {
		l.wish.retry.next = l.wish.written.Add(wishesApart)
		return
	}
	err := l.parts.Kubernetes.Annotate(ctx, l.status.View, idle.KeyKeepAwakeUntil, value)
	switch {
	case err == nil:
		l.wish.written = now
		l.wish.retry.next = now.Add(wishesApart) // by then the watch has brought it
		l.parts.Logger.Info("what was asked for over the channel is written down", "annotation", idle.KeyKeepAwakeUntil, "until", l.wish.until)
	case errors.Is(err, kubernetes.ErrConflict):
		l.wish.retry.later(now, firstRetry, lastWishRetry)
	default:
		l.wish.retry.later(now, firstRetry, lastWishRetry)
		l.parts.Logger.Warn("what was asked for over the channel could not be written down", "error", err.Error())
	}
}
