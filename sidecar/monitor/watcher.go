package monitor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

const (
	// pauseLasts is how long reception pauses after two uses within that interval. The server is then known to be in use,
	// and a storm of logins must not wake this process thousands of times a second. A single use is dated by its own
	// event.
	pauseLasts = time.Second
	// firstRetry and lastRetry limit the wait before a kernel that has not reported is tried again, which doubles each
	// time. On a busy machine the report may only have been late.
	firstRetry, lastRetry = 10 * time.Second, 5 * time.Minute
)

// socketWatcher waits for the kernel's socket events in its own goroutine.
type socketWatcher struct {
	open   func() (SocketEvents, error)
	logger *slog.Logger
	events chan<- Event

	source SocketEvents  // nil while not watching
	stop   chan struct{} // stops the goroutine
	done   chan struct{}

	// paused is set while reception is paused after frequent uses, until resume.
	paused  bool
	resume  time.Time
	lastUse time.Time
	retryAt time.Time // no attempt before then
	wait    time.Duration
	polling bool // whether the newest attempt failed: frequent samples replace the events

	unsupported bool // [Status.Unsupported]
}

// watching reports whether events are received.
func (w *socketWatcher) watching() bool { return w.source != nil }

// reported reports whether no use is missed: events are received, or a use has paused their reception.
func (w *socketWatcher) reported() bool { return w.watching() || w.paused }

// mayStart reports whether an attempt to watch is due.
func (w *socketWatcher) mayStart(now time.Time) bool {
	return w.source == nil && !now.Before(w.retryAt)
}

// start starts watching once it is proven that events arrive, and returns the sessions that ended meanwhile. An error
// that is [sockets.ErrUnsupported] means that the kernel lacks support.
func (w *socketWatcher) start(ctx context.Context) ([]activity.Ended, error) {
	w.paused = false
	source, err := w.open()
	if err != nil {
		w.retryLater()
		return nil, err
	}
	others, err := source.Prove(ctx)
	if err == nil {
		_, err = source.Open()
	}
	if err != nil {
		source.Close()
		if errors.Is(err, sockets.ErrUnsupported) {
			w.retryLater()
		}
		return nil, err
	}
	w.wait = 0
	w.source, w.stop, w.done = source, make(chan struct{}), make(chan struct{})
	go w.notify(source, w.stop, w.done)
	return others, nil
}

// retryLater has the next attempt wait.
func (w *socketWatcher) retryLater() {
	w.wait = min(max(2*w.wait, firstRetry), lastRetry)
	w.retryAt = time.Now().Add(w.wait)
}

// openSessions returns the TCP sessions that are open; none if events are not received.
func (w *socketWatcher) openSessions() ([]activity.Open, error) {
	if !w.watching() {
		return nil, nil
	}
	return w.source.Open()
}

// notify sends an event whenever something has arrived, until the source is closed. The handler of the event reads what
// arrived: if notify read it, it could still be in transit when a sample ends.
func (w *socketWatcher) notify(source SocketEvents, stop <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	for {
		err := source.Wait()
		handled := make(chan struct{})
		select {
		case w.events <- Event{source: source, handled: handled, err: err}:
		case <-stop:
			return
		}
		if err != nil {
			return
		}
		select {
		case <-handled:
		case <-stop:
			return
		}
	}
}

// close stops watching.
func (w *socketWatcher) close() {
	w.paused = false
	if w.source == nil {
		return
	}
	close(w.stop)
	w.source.Close()
	<-w.done
	w.source = nil
}

// use records that the server is in use, and pauses reception if it was also used a moment ago.
func (w *socketWatcher) use(now time.Time) {
	often := now.Sub(w.lastUse) < pauseLasts
	w.lastUse = now
	if often && w.watching() {
		w.close()
		w.paused, w.resume = true, now.Add(pauseLasts)
	}
}

// watch starts watching if not already watching. What happened before is unknown, unless reception was paused because
// of a use: that use is then taken to have lasted until now. Another attempt that fails changes nothing: the samples go
// on.
func (m *Monitor) watch(ctx context.Context) {
	if !m.sockets.mayStart(time.Now()) {
		return
	}
	paused := m.sockets.paused
	others, err := m.sockets.start(ctx)
	m.sockets.noteSupport(err)
	if err != nil {
		if !m.sockets.polling && !m.sockets.unsupported {
			m.sockets.logger.Warn("cannot watch the sockets that end; the next sample retries it", "error", err.Error())
		}
		m.sessions.gap, m.sockets.polling = m.sessions.gap || !m.sockets.polling, true
		return
	}
	m.sockets.polling = false
	if paused {
		m.sockets.lastUse = time.Now()
		m.sessions.used = later(m.sessions.used, m.sockets.lastUse)
	} else {
		m.sessions.gap = true
	}
	m.peers.addrs.reportsLost() // what ended before was not reported
	for _, ended := range others {
		m.sessions.used = later(m.sessions.used, m.peers.judge(ended))
	}
	m.peers.noteDirect(time.Now()) // a direct session may have been missed
}

// noteSupport records whether the kernel supports socket events, and logs changes.
func (w *socketWatcher) noteSupport(err error) {
	switch unsupported := errors.Is(err, sockets.ErrUnsupported); {
	case unsupported && !w.unsupported:
		w.unsupported = true
		w.logger.Warn("the kernel does not report the sockets that end; the instance is sampled every second",
			"error", err.Error())
	case err == nil && w.unsupported:
		w.unsupported = false
		w.logger.Info("the kernel reports the sockets that end")
	}
}
