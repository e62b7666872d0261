package monitor

import (
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// mailbox takes notifications in from the listener without making it wait, and loses none of what they ask for: many that
// say the same become one.
type mailbox struct {
	events chan<- Event

	mutex sync.Mutex
	mail  mail
}

// mail is what has come in.
type mail struct {
	// counts are the notifications by kind.
	counts map[postgres.Kind]int
	// used is the newest that says that the database is in use, backlog the newest that says that some may have been missed,
	// and hibernate the newest request to sleep.
	used, backlog, hibernate time.Time
	// keepAwake is what was asked for.
	keepAwake *KeepAwakeRequest
	// malformed is why the newest payload was not understood, failure why the listener does not listen.
	malformed, failure error
}

// post takes a notification in.
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
		until := n.At.Add(min(n.For, contract.LongestKeepAwake))
		if m.mail.keepAwake != nil {
			until = later(m.mail.keepAwake.Until, until)
		}
		m.mail.keepAwake = &KeepAwakeRequest{Until: until}
		m.mail.used = later(m.mail.used, n.At)
	case postgres.KindRelease:
		m.mail.keepAwake = &KeepAwakeRequest{}
	case postgres.KindHibernate:
		m.mail.hibernate = later(m.mail.hibernate, n.At)
	case postgres.KindMalformed:
		m.mail.malformed = n.Err
	}
	m.signal()
}

// fail takes in why the listener does not listen.
func (m *mailbox) fail(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.mail.failure = err
	m.signal()
}

// signal says that something came in. Where the queue is full it need not: every event that is handled empties the mailbox.
func (m *mailbox) signal() {
	select {
	case m.events <- Event{}:
	default:
	}
}

// take empties the mailbox.
func (m *mailbox) take() mail {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	taken := m.mail
	m.mail = mail{}
	return taken
}
