package waker

import (
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// searches are those that go on, one for each Service. Nothing is kept of a client that leaves one. The zero value is ready.
type searches struct {
	mutex   sync.Mutex
	running map[types.UID]*search
}

// search looks for an instance.
type search struct {
	// until is until when somebody waits for it.
	until time.Time
	ended chan struct{}
	// address and err may be read when ended is closed.
	address netip.AddrPort
	err     error
}

// join has the Service's search go on until then, and begins it if none goes on.
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

// end tells everybody who waits.
func (s *searches) end(service types.UID, ended *search) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.running, service)
	close(ended.ended)
}

// left is for how long somebody still waits; not positive: nobody does.
func (s *searches) left(service types.UID, now time.Time) time.Duration {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	running, ok := s.running[service]
	if !ok {
		return 0
	}
	return running.until.Sub(now)
}
