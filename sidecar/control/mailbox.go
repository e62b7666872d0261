package control

import (
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
)

// mailbox takes notifications in from the listener without making it wait, and loses none of what they ask for: many that
// say the same become one.
type mailbox struct {
	arrived chan struct{}

	mutex sync.Mutex
	mail  mail
}

// mail is what has come in.
type mail struct {
	// counts are the notifications by kind.
	counts map[postgres.Kind]int
	// used is the newest that says that the database is in use, backlog the newest that says that some may have been missed.
	used, backlog time.Time
	// asks says that something was asked for: until when to stay awake, zero for no longer.
	asks  bool
	until time.Time
	// hibernate is the newest request to sleep.
	hibernate time.Time
	// malformed is why the newest payload was not understood, failure why the listener does not listen.
	malformed, failure error
}

func newMailbox() *mailbox { return &mailbox{arrived: make(chan struct{}, 1)} }

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
		m.mail.asks, m.mail.until = true, later(m.mail.until, n.At.Add(min(n.For, idle.LongestKeepAwake)))
		m.mail.used = later(m.mail.used, n.At)
	case postgres.KindRelease:
		m.mail.asks, m.mail.until = true, time.Time{}
	case postgres.KindHibernate:
		m.mail.hibernate = later(m.mail.hibernate, n.At)
	case postgres.KindMalformed:
		m.mail.malformed = n.Err
	}
	m.ring()
}

// fail takes in why the listener does not listen.
func (m *mailbox) fail(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.mail.failure = err
	m.ring()
}

func (m *mailbox) ring() {
	select {
	case m.arrived <- struct{}{}:
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
