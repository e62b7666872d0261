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
// Every cluster has one slot of its own. While slots are free, every newcomer gets one. When all are taken, a newcomer
// takes one from the namespace with the most (not counting its clusters' own slots), within it from the cluster with
// the most, and within that from the source address with the most. If nobody would then have more than the newcomer,
// the newcomer is refused; with displaceAlways it takes the oldest slot of its own cluster instead.
//
// So a source address only decides between clients of one cluster, because many tenants may share one behind source
// NAT. It decides between clusters only when more clusters have clients than there are slots.
type limiter struct {
	most int
	// displaceAlways is for slots that an honest client needs only briefly: the oldest slot is displaced and no newcomer
	// is refused. Otherwise the newest is displaced.
	displaceAlways bool

	mutex sync.Mutex
	slots []*slot // those that are taken, the oldest first
	// clusters, namespaces and sources count them, and owners the clusters of each namespace that have any.
	clusters           tally[types.NamespacedName]
	namespaces, owners tally[string]
	sources            tally[netip.Addr]
}

type claim struct {
	cluster types.NamespacedName
	source  netip.Addr
}

type slot struct {
	claim
	// leave is called when a newcomer takes the slot over. It must not block.
	leave func()
	// These are the counts that include the slot. displaceable compares all slots, and looking up each one's would take
	// too long.
	inCluster, inNamespace, owners, ofSource *int
}

// shared returns how many slots its namespace has, not counting its clusters' own.
func (p *slot) shared() int { return *p.inNamespace - *p.owners }

func newLimiter(most int, displaceAlways bool) *limiter {
	return &limiter{
		most: most, displaceAlways: displaceAlways, clusters: tally[types.NamespacedName]{},
		namespaces: tally[string]{}, owners: tally[string]{}, sources: tally[netip.Addr]{},
	}
}

// resize changes the number of slots. Those that are taken stay so.
func (l *limiter) resize(most int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.most = most
}

// SourceOf returns the key by which clients are counted: the IPv4 address, or the /64 network of an IPv6 address,
// because a host can use every address of its /64.
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

// take takes a slot. It returns nil if the newcomer is refused. If the slot was another holder's, that holder's leave
// is called.
func (l *limiter) take(c claim, leave func()) *slot {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if len(l.slots) >= l.most {
		displaced := l.displaceable(c)
		if displaced == nil {
			return nil
		}
		l.remove(displaced)
		displaced.leave()
	}
	p := &slot{claim: c, leave: leave}
	l.slots = append(l.slots, p)
	l.count(p, 1)
	return p
}

// give frees the slot, unless another client has already taken it over.
func (l *limiter) give(p *slot) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.remove(p)
}

func (l *limiter) remove(p *slot) {
	if at := slices.Index(l.slots, p); at >= 0 {
		l.slots = slices.Delete(l.slots, at, at+1)
		l.count(p, -1)
	}
}

// count adds the slot to the counts (change 1), or removes it (-1).
func (l *limiter) count(p *slot, change int) {
	namespace, owners := p.cluster.Namespace, 0
	p.inCluster, p.inNamespace = l.clusters.add(p.cluster, change), l.namespaces.add(namespace, change)
	if *p.inCluster == max(change, 0) { // it is the first of its cluster, or was the last
		owners = change
	}
	p.owners, p.ofSource = l.owners.add(namespace, owners), l.sources.add(p.source, change)
}

// displaceable returns the slot that a newcomer takes over when all are taken, or nil. It goes through all of them,
// which takes some ten microseconds.
func (l *limiter) displaceable(c claim) *slot {
	most := 0
	for _, p := range l.slots {
		most = max(most, p.shared())
	}
	own, namespace := l.clusters.of(c.cluster), l.namespaces.of(c.cluster.Namespace)
	if *own == 0 && most > 0 || *own > 0 && most > *namespace-*l.owners.of(c.cluster.Namespace)+1 {
		return l.largest(func(p *slot) bool { return p.shared() == most })
	}
	if *own > 0 {
		largest := l.largest(func(p *slot) bool { return p.inNamespace == namespace })
		if *largest.inCluster > *own+1 {
			return largest
		}
	}
	largest := l.largest(func(p *slot) bool { return *own == 0 || p.inCluster == own })
	if largest != nil && (l.displaceAlways || *largest.ofSource > *l.sources.of(c.source)+1) {
		return largest
	}
	return nil
}

// largest returns the slot, of those in question, whose cluster has the most slots, and of its sources the one with the
// most overall.
func (l *limiter) largest(in func(*slot) bool) *slot {
	var largest *slot
	for _, p := range l.slots {
		if !in(p) {
			continue
		}
		order := 1
		if largest != nil {
			order = cmp.Or(cmp.Compare(*p.inCluster, *largest.inCluster), cmp.Compare(*p.ofSource, *largest.ofSource))
		}
		if order > 0 || order == 0 && !l.displaceAlways {
			largest = p
		}
	}
	return largest
}

// tally counts by key. It keeps no zero, because keys come and go for as long as the process runs.
type tally[K comparable] map[K]*int

// of returns the count of the key, which only add changes.
func (t tally[K]) of(key K) *int { return cmp.Or(t[key], new(int)) }

// add changes the count of the key, and returns it.
func (t tally[K]) add(key K, change int) *int {
	count := t.of(key)
	*count += change
	if t[key] = count; *count == 0 {
		delete(t, key)
	}
	return count
}

// sessions assigns the session slots. Nobody loses one to another. A cluster's first session gets a slot while any is
// free; further sessions only while the cluster's namespace has fewer slots than are free. So one namespace gets at
// most half of them, two get a third each, and some are always left for others.
type sessions struct {
	most int

	mutex      sync.Mutex
	taken      int
	namespaces tally[string]
	clusters   tally[types.NamespacedName]
}

func newSessions(most int) *sessions {
	return &sessions{most: most, namespaces: tally[string]{}, clusters: tally[types.NamespacedName]{}}
}

func (s *sessions) take(cluster types.NamespacedName) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	free := s.most - s.taken
	if free <= 0 || *s.clusters.of(cluster) > 0 && *s.namespaces.of(cluster.Namespace) >= free {
		return false
	}
	s.taken++
	s.clusters.add(cluster, 1)
	s.namespaces.add(cluster.Namespace, 1)
	return true
}

func (s *sessions) give(cluster types.NamespacedName) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.taken--
	s.clusters.add(cluster, -1)
	s.namespaces.add(cluster.Namespace, -1)
}

func (s *sessions) count() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.taken
}
