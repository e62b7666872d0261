package waker

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The rates at which a replica begins wakes.
const (
	sourceBurst, sourceRefill = 10, 100 * time.Second
	sharedBurst, sharedEvery  = 500, time.Second
	// fleetSource, fleetBurst and fleetRate divide the size of a larger fleet into the burst of a source, and the burst
	// and the rate per second of the shared budget: two replicas wake all of it within five minutes.
	fleetSource, fleetBurst, fleetRate = 200, 20, 600
	// waitsFor is how long a source stays in the queue without asking again.
	waitsFor = 3 * askBudgetEvery
	// askBudgetEvery is how often a waiting wake asks again.
	askBudgetEvery = time.Second
)

// Budget limits how many wakes may begin, because each schedules pods that have to be paid for.
//
// A source address may begin a number of wakes at once, and as many more in each sourceRefill. Further wakes use a
// budget that all sources share. Unless set, both grow with the fleet, from ten at once for a source, and 500 at once
// and one a second for all. If both are used up, the wake waits. Waiting wakes are served in turn, source by source,
// starting with the source whose last turn was longest ago.
type Budget struct {
	source, burst, rate int // of each source, and of the shared budget; 0: for the size of the fleet

	mutex    sync.Mutex
	clusters int
	shared   bucket
	swept    time.Time // when forget last ran
	accounts map[netip.Addr]*account
}

// account is the state of one source.
type account struct {
	own bucket
	// served is when it last used the shared budget.
	served time.Time
	// waiting are the clusters whose wakes wait, with the time at which each was last asked for.
	waiting map[types.NamespacedName]time.Time
}

// NewBudget returns an unused budget, which begins so many wakes at once for each source, and whose shared part begins
// as many at once, and more each second. 0 is for the size of the fleet.
func NewBudget(source, burst, rate int) *Budget {
	return &Budget{source: source, burst: burst, rate: rate, accounts: map[netip.Addr]*account{}}
}

// SetFleet sets the number of clusters.
func (b *Budget) SetFleet(clusters int) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.clusters = clusters
}

// pace returns how many wakes the shared budget begins at once, and how often one more.
func (b *Budget) pace() (burst int, every time.Duration) {
	burst = cmp.Or(b.burst, max(sharedBurst, b.clusters/fleetBurst))
	return burst, sharedEvery / time.Duration(cmp.Or(b.rate, max(1, b.clusters/fleetRate)))
}

// Take reports whether the source may wake the cluster now. If not, the source is queued until it asks again or leaves.
func (b *Budget) Take(source netip.Addr, cluster types.NamespacedName, now time.Time) (ok bool) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.forget(now)
	asking := b.accounts[source]
	if asking == nil {
		asking = &account{waiting: map[types.NamespacedName]time.Time{}}
		b.accounts[source] = asking
	}
	own := cmp.Or(b.source, max(sourceBurst, b.clusters/fleetSource))
	burst, every := b.pace()
	switch {
	case asking.own.take(now, own, sourceRefill/time.Duration(own)):
	case b.isNext(asking) && b.shared.take(now, burst, every):
		asking.served = now
	default:
		asking.waiting[cluster] = now
		return false
	}
	delete(asking.waiting, cluster)
	return true
}

// Leave withdraws the source's request for the cluster.
func (b *Budget) Leave(source netip.Addr, cluster types.NamespacedName) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if leaving := b.accounts[source]; leaving != nil {
		delete(leaving.waiting, cluster)
	}
}

// isNext reports whether no waiting source was last served before this one.
func (b *Budget) isNext(asking *account) bool {
	for _, other := range b.accounts {
		if other != asking && len(other.waiting) != 0 && other.served.Before(asking.served) {
			return false
		}
	}
	return true
}

// forget drops requests that were not repeated and accounts that hold no state, at most once per askBudgetEvery.
func (b *Budget) forget(now time.Time) {
	if now.Sub(b.swept) < askBudgetEvery {
		return
	}
	b.swept = now
	burst, every := b.pace()
	for source, a := range b.accounts {
		maps.DeleteFunc(a.waiting, func(_ types.NamespacedName, asked time.Time) bool { return now.Sub(asked) > waitsFor })
		if len(a.waiting) == 0 && !a.own.empties.After(now) && now.Sub(a.served) > time.Duration(burst)*every {
			delete(b.accounts, source)
		}
	}
}

// bucket is a token bucket. The zero value is full.
type bucket struct {
	// empties is when the bucket will be full again.
	empties time.Time
}

// take takes one token from a bucket of the given size, which regains one in each interval, and reports whether one was
// left.
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
