package waker

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Notifier tells waiters that something about a cluster has changed. The zero value is ready to use.
type Notifier struct {
	mutex   sync.Mutex
	waiting map[types.NamespacedName]chan struct{}
}

// Listen returns a channel that the next Notify closes. Call Listen before reading the state, so that no change is missed.
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

// Notify wakes all listeners of the cluster.
func (b *Notifier) Notify(cluster types.NamespacedName) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if notified, ok := b.waiting[cluster]; ok {
		close(notified)
		delete(b.waiting, cluster)
	}
}
