// Package keyed provides maps and notifications by key, such as a cluster, for several goroutines.
package keyed

import (
	"maps"
	"slices"
	"sync"
)

// Map has a value for each key that is kept. The zero value is empty and ready to use.
type Map[K comparable, V any] struct {
	mutex  sync.Mutex
	values map[K]V
}

// Change changes the value of a key, which is zero if the key is not kept, and keeps the key if change says so. Nothing
// else reads or changes the map meanwhile.
func (m *Map[K, V]) Change(key K, change func(value *V) (keep bool)) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	value := m.values[key]
	if !change(&value) {
		delete(m.values, key)
		return
	}
	if m.values == nil {
		m.values = map[K]V{}
	}
	m.values[key] = value
}

// Get returns the value of a key; zero if the key is not kept.
func (m *Map[K, V]) Get(key K) V {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.values[key]
}

// Set keeps the value for a key.
func (m *Map[K, V]) Set(key K, value V) {
	m.Change(key, func(old *V) bool { *old = value; return true })
}

// Delete forgets a key.
func (m *Map[K, V]) Delete(key K) {
	m.Change(key, func(*V) bool { return false })
}

// DeleteFunc forgets the keys for which forgotten reports true.
func (m *Map[K, V]) DeleteFunc(forgotten func(K, V) bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	maps.DeleteFunc(m.values, forgotten)
}

// Keys returns the keys that are kept.
func (m *Map[K, V]) Keys() []K {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.Collect(maps.Keys(m.values))
}

// Notifier tells who listens for a key that something about it has changed. The zero value is ready to use.
type Notifier[K comparable] struct{ listened Map[K, chan struct{}] }

// Listen returns a channel that the next Notify closes. Call it before reading the state, so that no change is missed.
func (n *Notifier[K]) Listen(key K) (notified <-chan struct{}) {
	n.listened.Change(key, func(c *chan struct{}) bool {
		if *c == nil {
			*c = make(chan struct{})
		}
		notified = *c
		return true
	})
	return notified
}

// Notify wakes all who listen for the key.
func (n *Notifier[K]) Notify(key K) {
	n.listened.Change(key, func(c *chan struct{}) bool {
		if *c != nil {
			close(*c)
		}
		return false
	})
}
