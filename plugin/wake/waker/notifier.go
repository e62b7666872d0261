package waker

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Notifier tells those who wait for a cluster that something of it has changed. The zero value is ready.
type Notifier struct {
	mutex   sync.Mutex
	waiting map[types.NamespacedName]chan struct{}
}

// Listen returns a channel that the next Notify closes. Whoever waits listens first and reads then, so that no change falls
// between.
func (b *Notifier) Listen(cluster types.NamespacedName) <-chan struct{} {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	notified, ok := b.waiting[cluster]
	if !ok {
		notified = make(chan struct{})
		if b.waiting == nil {
			b.waiting = map[types.NamespacedName]chan struct{}{}
		}
		b.waiting[cluster] = notified
	}
	return notified
}

// Notify wakes everybody who listens.
func (b *Notifier) Notify(cluster types.NamespacedName) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if notified, ok := b.waiting[cluster]; ok {
		close(notified)
		delete(b.waiting, cluster)
	}
}
