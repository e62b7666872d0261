package waker

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// How many wakes a replica begins.
const (
	sourceBurst, sourceEvery = 10, 10 * time.Second
	sharedBurst, sharedEvery = 500, time.Second
	// waitsFor is for how long somebody who has asked for a wake waits for it without asking again.
	waitsFor = 3 * askBudgetEvery
	// askBudgetEvery is how often a wake that has to wait asks again.
	askBudgetEvery = time.Second
)

// Budget is how many wakes may begin: each is a pod that is scheduled, and is paid for.
//
// A source address may begin ten wakes at once and one more every ten seconds. What goes beyond is taken from a budget of all
// sources together, 500 at once and one more a second. Who finds neither waits, and those who wait are served in turn, source
// by source, the one that has waited longest first.
type Budget struct {
	mutex    sync.Mutex
	shared   bucket
	swept    time.Time // when forget last did something
	accounts map[netip.Addr]*account
}

// account is what is known of a source.
type account struct {
	own bucket
	// served is when it last took from the shared budget.
	served time.Time
	// waiting are the clusters whose wakes wait, and when each last asked.
	waiting map[types.NamespacedName]time.Time
}

// NewBudget makes a budget of which nothing has been used.
func NewBudget() *Budget {
	return &Budget{accounts: map[netip.Addr]*account{}}
}

// Take reports whether the source may wake the cluster now. If not, it waits until it asks again or has left.
func (b *Budget) Take(source netip.Addr, cluster types.NamespacedName, now time.Time) (ok bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.forget(now)
	asking := b.accounts[source]
	if asking == nil {
		asking = &account{waiting: map[types.NamespacedName]time.Time{}}
		b.accounts[source] = asking
	}
	switch {
	case asking.own.take(now, sourceBurst, sourceEvery):
	case b.isNext(asking) && b.shared.take(now, sharedBurst, sharedEvery):
		asking.served = now
	default:
		asking.waiting[cluster] = now
		return false
	}
	delete(asking.waiting, cluster)
	return true
}

// Leave withdraws what the source asked for.
func (b *Budget) Leave(source netip.Addr, cluster types.NamespacedName) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if leaving := b.accounts[source]; leaving != nil {
		delete(leaving.waiting, cluster)
	}
}

// isNext reports whether no other source waits that was served before this one.
func (b *Budget) isNext(asking *account) bool {
	for _, other := range b.accounts {
		if other != asking && len(other.waiting) != 0 && other.served.Before(asking.served) {
			return false
		}
	}
	return true
}

// forget forgets who has not asked again, and sources of which there is nothing to know, now and then.
func (b *Budget) forget(now time.Time) {
	if now.Sub(b.swept) < askBudgetEvery {
		return
	}
	b.swept = now
	for source, a := range b.accounts {
		maps.DeleteFunc(a.waiting, func(_ types.NamespacedName, asked time.Time) bool { return now.Sub(asked) > waitsFor })
		if len(a.waiting) == 0 && !a.own.empties.After(now) && now.Sub(a.served) > sharedBurst*sharedEvery {
			delete(b.accounts, source)
		}
	}
}

// bucket is how much of a budget is used, which time gives back. The zero value is not used.
type bucket struct {
	// empties is when all will have been given back.
	empties time.Time
}

// take uses one of so many, of which one is given back every so often, and reports whether one was left.
func (b *bucket) take(now time.Time, most int, every time.Duration) (ok bool) {
	empties := b.empties
	if empties.Before(now) {
		empties = now
	}
	empties = empties.Add(every)
	if empties.Sub(now) > time.Duration(most)*every {
		return false
	}
	b.empties = empties
	return true
}
