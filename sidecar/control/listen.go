package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// listening is the listener that runs, if one does.
type listening struct {
	listener Listener
	database string
	done     chan struct{}
	earlier  bool // a listener of this worker has listened before
}

func (l *listening) connected() bool { return l.listener != nil && l.listener.Connected() }

// running tells whether the listener's goroutine has not ended.
func (l *listening) running() bool {
	if l.listener == nil {
		return false
	}
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// channelDatabase is the database whose channel is to be listened to; empty: none. A standby permits no LISTEN.
func (l *Loop) channelDatabase() string {
	v := l.status.View
	if !l.status.Known || v.CurrentPrimary != l.parts.Pod || v.ReplicaCluster {
		return ""
	}
	if l.status.Policy.DatabaseSet {
		return l.status.Policy.Database
	}
	return v.ApplicationDatabase
}

// listenOrNot starts, moves or stops the listener as the newest look and the Cluster ask. It listens only where a look has
// just succeeded.
func (l *Loop) listenOrNot(ctx context.Context) {
	want := l.channelDatabase()
	if l.listening.running() && l.listening.database == want {
		return
	}
	l.stopListening()
	if want == "" || l.quietNow() || !l.drainedSince().IsZero() {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	l.mutex.Lock()
	l.hangUp = cancel
	l.mutex.Unlock()
	listener := l.parts.Listen(want, l.mailbox.post, l.mailbox.fail)
	done := make(chan struct{})
	l.listening = listening{listener: listener, database: want, done: done, earlier: l.listening.earlier}
	go func() {
		defer close(done)
		listener.Run(ctx)
	}()
	if !l.drainedSince().IsZero() { // drained while it was being started
		cancel()
	}
}

// stopListening ends the listener and waits until its session is closed.
func (l *Loop) stopListening() {
	l.mutex.Lock()
	hangUp := l.hangUp
	l.hangUp = func() {}
	l.mutex.Unlock()
	hangUp()
	if l.listening.listener != nil {
		<-l.listening.done
		l.listening = listening{earlier: l.listening.earlier}
	}
}

// listenFailed logs why the listener does not listen; a refusal is an Event too, since a person has to mend it.
func (l *Loop) listenFailed(ctx context.Context, err error) {
	l.parts.Logger.Warn("the control channel cannot be listened to", "channel", postgres.Channel, "error", err.Error())
	var refused *postgres.RefusedError
	if !errors.As(err, &refused) || l.told.refused == refused.Database+refused.Code {
		return
	}
	l.told.refused = refused.Database + refused.Code
	l.parts.Kubernetes.Record(ctx, l.status.View, kubernetes.Event{
		Type: kubernetes.EventWarning, Reason: "ListenRefused",
		Message: fmt.Sprintf("Notifications on channel %s of database %q are not received (SQLSTATE %s); sessions are watched all the same",
			postgres.Channel, refused.Database, refused.Code),
	}, time.Now())
}
