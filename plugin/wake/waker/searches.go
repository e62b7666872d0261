package waker

import (
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// searches are the running searches, one for each Service. They keep nothing about clients that leave. The zero value is ready to
// use.
type searches struct {
	mutex   sync.Mutex
	running map[types.UID]*search
}

// search looks for an instance.
type search struct {
	// until is how long some client still waits for it.
	until time.Time
	ended chan struct{}
	// address and err may be read once ended is closed.
	address netip.AddrPort
	err     error
}

// join extends the Service's search until the given time, and starts one if none is running.
func (s *searches) join(service types.UID, until time.Time, find func() (netip.AddrPort, error)) *search {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if running, ok := s.running[service]; ok {
		if until.After(running.until) {
			running.until = until
		}
		return running
	}
	if s.running == nil {
		s.running = map[types.UID]*search{}
	}
	begun := &search{until: until, ended: make(chan struct{})}
	s.running[service] = begun
	go func() {
		defer s.end(service, begun)
		begun.address, begun.err = find()
	}()
	return begun
}

// end wakes all clients that wait for the search.
func (s *searches) end(service types.UID, ended *search) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.running, service)
	close(ended.ended)
}

// left returns how long some client still waits; it is not positive if none does.
func (s *searches) left(service types.UID, now time.Time) time.Duration {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	running, ok := s.running[service]
	if !ok {
		return 0
	}
	return running.until.Sub(now)
}
