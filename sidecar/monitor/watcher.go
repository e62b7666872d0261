package monitor

import (
	"context"
	"errors"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

const (
	// pauseLasts is for how long no socket events are received after two uses that are no farther apart: that there is some is
	// known, and under a storm of logins one event a second is as good as a thousand. A single use is dated by its own event.
	pauseLasts = time.Second
	// retryAfter is how long it takes until a kernel that does not report is tried again.
	retryAfter = 5 * time.Minute
)

// socketWatcher watches for the kernel's socket events in a goroutine of its own.
type socketWatcher struct {
	open   func() (SocketEvents, error)
	events chan<- Event

	source SocketEvents  // nil: it does not watch
	stop   chan struct{} // ends the goroutine
	done   chan struct{}

	// paused says that watching was given up because of a use, until resume.
	paused  bool
	resume  time.Time
	lastUse time.Time
	retryAt time.Time // until then the kernel is not asked again
}

// watching reports whether events are received.
func (w *socketWatcher) watching() bool { return w.source != nil }

// mayStart reports whether it is worth trying to watch.
func (w *socketWatcher) mayStart(now time.Time) bool {
	return w.source == nil && !now.Before(w.retryAt)
}

// start begins to watch, once it is proven that events arrive, and returns the sessions that have ended meanwhile. Errors that
// are [sockets.ErrUnsupported] are the kernel's.
func (w *socketWatcher) start(ctx context.Context) ([]activity.Ended, error) {
	w.paused = false
	source, err := w.open()
	if err != nil {
		w.retryAt = time.Now().Add(retryAfter)
		return nil, err
	}
	others, err := source.Prove(ctx)
	if err == nil {
		_, err = source.Open()
	}
	if err != nil {
		source.Close()
		if errors.Is(err, sockets.ErrUnsupported) {
			w.retryAt = time.Now().Add(retryAfter)
		}
		return nil, err
	}
	w.source, w.stop, w.done = source, make(chan struct{}), make(chan struct{})
	go w.notify(source, w.stop, w.done)
	return others, nil
}

// notify sends an event whenever something has arrived, until the source is closed. What arrived is read by whoever handles
// the event: read here, it could be on its way when a sample ends.
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

// use takes in that the server is in use, and pauses if it was a moment ago too.
func (w *socketWatcher) use(now time.Time) {
	often := now.Sub(w.lastUse) < pauseLasts
	w.lastUse = now
	if often && w.watching() {
		w.close()
		w.paused, w.resume = true, now.Add(pauseLasts)
	}
}

// watch begins to watch unless that is so. What came before is not known, unless watching was paused because of a use: then it
// lasted until now.
func (m *Monitor) watch(ctx context.Context) {
	if !m.sockets.mayStart(time.Now()) {
		return
	}
	paused := m.sockets.paused
	others, err := m.sockets.start(ctx)
	m.noteSupport(err)
	if err != nil {
		m.since.gap = true
		return
	}
	if paused {
		m.sockets.lastUse = time.Now()
		m.since.used = later(m.since.used, m.sockets.lastUse)
	} else {
		m.since.gap = true
	}
	for _, ended := range others {
		m.judge(ended)
	}
}

// noteSupport takes in whether the kernel reports, and logs it when that changes.
func (m *Monitor) noteSupport(err error) {
	switch unsupported := errors.Is(err, sockets.ErrUnsupported); {
	case unsupported && !m.status.Unsupported:
		m.status.Unsupported = true
		m.parts.Logger.Warn("the kernel does not report the sockets that end; the instance is sampled every second", "error", err.Error())
	case err == nil && m.status.Unsupported:
		m.status.Unsupported = false
		m.parts.Logger.Info("the kernel reports the sockets that end")
	}
}
