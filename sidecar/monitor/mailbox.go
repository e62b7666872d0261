package monitor

import (
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// mailbox receives notifications from the listener without blocking it. It coalesces equal requests and loses none.
type mailbox struct {
	events chan<- Event

	mutex sync.Mutex
	mail  mail
}

// mail is the coalesced content of a mailbox.
type mail struct {
	// counts holds the number of notifications of each kind.
	counts map[postgres.Kind]int
	// used, backlog and hibernate are the times of the newest notification of use, the newest one that others may have
	// been missed, and the newest request to sleep.
	used, backlog, hibernate time.Time
	// keepAwake is the pending keep-awake request.
	keepAwake *KeepAwakeRequest
	// malformed is why the newest malformed payload was rejected, failure why the listener is not listening.
	malformed, failure error
}

// post adds a notification.
func (m *mailbox) post(n postgres.Notification) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.mail.counts == nil {
		m.mail.counts = map[postgres.Kind]int{}
	}
	m.mail.counts[n.Kind]++
	switch n.Kind {
	case postgres.KindActivity:
		m.mail.used = later(m.mail.used, n.At)
	case postgres.KindBacklog:
		m.mail.backlog = later(m.mail.backlog, n.At)
	case postgres.KindKeepAwake:
		if m.mail.keepAwake == nil {
			m.mail.keepAwake = &KeepAwakeRequest{}
		}
		m.mail.keepAwake.Until = later(m.mail.keepAwake.Until, n.At.Add(min(n.For, contract.LongestKeepAwake)))
		m.mail.used = later(m.mail.used, n.At)
	case postgres.KindRelease:
		m.mail.keepAwake = &KeepAwakeRequest{Released: true}
	case postgres.KindHibernate:
		m.mail.hibernate = later(m.mail.hibernate, n.At)
	case postgres.KindMalformed:
		m.mail.malformed = n.Err
	}
	m.signal()
}

// fail records why the listener is not listening.
func (m *mailbox) fail(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.mail.failure = err
	m.signal()
}

// signal queues an event. It may drop it when the queue is full, because handling any event empties the mailbox.
func (m *mailbox) signal() {
	select {
	case m.events <- Event{}:
	default:
	}
}

// take returns the mail and empties the mailbox.
func (m *mailbox) take() mail {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	taken := m.mail
	m.mail = mail{}
	return taken
}
