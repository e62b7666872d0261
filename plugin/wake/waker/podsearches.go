package waker

import (
	"context"
	"sync"
)

// podSearchesAtOnce is how many searches for the pod of an address go on at once: the API server has no index of addresses and goes
// through all pods for each, and clients of many addresses may come together.
const podSearchesAtOnce = 4

// podSearches has no more than so many go on.
type podSearches struct {
	once  sync.Once
	slots chan struct{}
}

// take waits for a place, for no longer than the context.
func (p *podSearches) take(ctx context.Context) error {
	p.once.Do(func() { p.slots = make(chan struct{}, podSearchesAtOnce) })
	select {
	case p.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// give gives the place back.
func (p *podSearches) give() { <-p.slots }
