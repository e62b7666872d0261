package waker

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Bell tells those who wait for a cluster that something of it has changed. The zero value is ready.
type Bell struct {
	mutex   sync.Mutex
	waiting map[types.NamespacedName]chan struct{}
}

// Listen returns a channel that the next Ring closes. Whoever waits listens first and reads then, so that no change falls
// between.
func (b *Bell) Listen(cluster types.NamespacedName) <-chan struct{} {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	rung, is := b.waiting[cluster]
	if !is {
		rung = make(chan struct{})
		if b.waiting == nil {
			b.waiting = map[types.NamespacedName]chan struct{}{}
		}
		b.waiting[cluster] = rung
	}
	return rung
}

// Ring wakes everybody who listens.
func (b *Bell) Ring(cluster types.NamespacedName) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if rung, is := b.waiting[cluster]; is {
		close(rung)
		delete(b.waiting, cluster)
	}
}
