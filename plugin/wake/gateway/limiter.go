package gateway

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// limiter assigns a limited number of slots by this rule:
//
// Every cluster has one slot of its own. While slots are free, every newcomer gets one. When all are taken, a newcomer takes one
// from the namespace with the most (not counting its clusters' own slots), within it from the cluster with the most, and within
// that from the source address with the most. If nobody would then have more than the newcomer, the newcomer is refused; with
// displaceAlways it takes the oldest slot of its own cluster instead.
//
// So a source address only decides between clients of one cluster, since many tenants may share one behind source NAT. It decides
// between clusters only when more clusters have clients than there are slots.
type limiter struct {
	most int
	// displaceAlways is for slots that an honest client needs only briefly: the oldest slot is displaced and no newcomer is
	// refused. Otherwise the newest is displaced.
	displaceAlways bool

	mutex sync.Mutex
	slots []*slot // those that are taken, the oldest first
	// clusters and sources count them.
	clusters map[types.NamespacedName]int
	sources  map[netip.Addr]int
}

// claim identifies the client that a slot is counted for.
type claim struct {
	cluster types.NamespacedName
	source  netip.Addr
}

// slot is a taken slot.
type slot struct {
	claim
	// leave is called when a newcomer takes the slot over.
	leave func()
}

func newLimiter(most int, displaceAlways bool) *limiter {
	return &limiter{most: most, displaceAlways: displaceAlways, clusters: map[types.NamespacedName]int{}, sources: map[netip.Addr]int{}}
}

// resize changes the number of slots. Those that are taken stay so.
func (l *limiter) resize(most int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.most = most
}

// SourceOf returns the key by which clients are counted: the IPv4 address, or the /64 network of an IPv6 address, because a host
// can use every address of its /64.
func SourceOf(address netip.Addr) netip.Addr {
	address = address.Unmap().WithZone("")
	if !address.Is6() {
		return address
	}
	network, err := address.Prefix(64)
	if err != nil {
		return address
	}
	return network.Addr()
}

// take takes a slot. It returns nil if the newcomer is refused. If the slot was another holder's, that holder's leave is called.
func (l *limiter) take(c claim, leave func()) *slot {
	p, displaced := l.exchange(c, leave)
	if displaced != nil {
		displaced.leave()
	}
	return p
}

func (l *limiter) exchange(c claim, leave func()) (p, displaced *slot) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.slots) >= l.most {
		if displaced = l.displaceable(c); displaced == nil {
			return nil, nil
		}
		l.remove(displaced)
	}
	p = &slot{claim: c, leave: leave}
	l.slots = append(l.slots, p)
	l.clusters[c.cluster]++
	l.sources[c.source]++
	return p, displaced
}

// give frees the slot, unless another client has already taken it over.
func (l *limiter) give(p *slot) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.remove(p)
}

func (l *limiter) remove(p *slot) {
	at := slices.Index(l.slots, p)
	if at < 0 {
		return
	}
	l.slots = slices.Delete(l.slots, at, at+1)
	countDown(l.clusters, p.cluster)
	countDown(l.sources, p.source)
}

// countDown counts one less, and keeps no zero, because keys come and go for as long as the process runs.
func countDown[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// displaceable returns the slot that a newcomer takes over when all are taken, or nil. It goes through all of them, which takes some
// ten microseconds.
func (l *limiter) displaceable(c claim) *slot {
	shared, most := map[string]int{}, 0 // the slots of each namespace without the first of each cluster
	for cluster, count := range l.clusters {
		shared[cluster.Namespace] += count - 1
		most = max(most, shared[cluster.Namespace])
	}
	own := l.clusters[c.cluster]
	if own == 0 && most > 0 || own > 0 && most > shared[c.cluster.Namespace]+1 {
		return l.largest(func(p *slot) bool { return shared[p.cluster.Namespace] == most })
	}
	if own > 0 {
		largest := l.largest(func(p *slot) bool { return p.cluster.Namespace == c.cluster.Namespace })
		if l.clusters[largest.cluster] > own+1 {
			return largest
		}
	}
	largest := l.largest(func(p *slot) bool { return own == 0 || p.cluster == c.cluster })
	if largest != nil && (l.displaceAlways || l.sources[largest.source] > l.sources[c.source]+1) {
		return largest
	}
	return nil
}

// largest returns the slot, of those in question, whose cluster has the most slots, and of its sources the one with the most overall.
func (l *limiter) largest(in func(*slot) bool) *slot {
	var largest *slot
	for _, p := range l.slots {
		if !in(p) {
			continue
		}
		order := 1
		if largest != nil {
			order = cmp.Or(cmp.Compare(l.clusters[p.cluster], l.clusters[largest.cluster]), cmp.Compare(l.sources[p.source], l.sources[largest.source]))
		}
		if order > 0 || order == 0 && !l.displaceAlways {
			largest = p
		}
	}
	return largest
}
