package gateway

import (
	"container/list"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// limiter hands out a limited number of slots, by this rule:
//
// Every cluster has a slot of its own, and whoever comes gets a slot while one is free. When all are taken, a newcomer takes
// one from the namespace that has the most besides its clusters' own slots, there from the cluster with the most, and there
// from the source address with the most. If nobody has more than the newcomer itself would have then, the newcomer is refused,
// or with displaceAlways takes the oldest of its own cluster's.
//
// So a source address decides only between clients of one cluster, since many tenants may share one behind source NAT. It
// decides between clusters only when more clusters have clients than there are slots.
type limiter struct {
	most int
	// displaceAlways is for slots that an honest client needs for a moment only: who has had one for the longest time gives
	// way, and nobody is refused. Else the newest gives way.
	displaceAlways bool

	mutex  sync.Mutex
	taken  int
	number uint64 // of the last slot
	// shared are the slots by namespace, without the first of each cluster.
	shared   ranking[string]
	clusters map[string]*ranking[types.NamespacedName]
	sources  ranking[netip.Addr]
	// bySource and byClient are the slots of a source and those of a source in a cluster, the oldest first.
	bySource map[netip.Addr]*list.List
	byClient map[types.NamespacedName]map[netip.Addr]*list.List
}

// claim is for whom a slot is.
type claim struct {
	cluster types.NamespacedName
	source  netip.Addr
}

// slot is a slot that is taken.
type slot struct {
	claim
	// number is lower than those of later slots.
	number uint64
	// leave is called when another takes the slot.
	leave              func()
	ofSource, ofClient *list.Element // nil: the slot is taken no more
}

func newLimiter(most int, displaceAlways bool) *limiter {
	return &limiter{
		most: most, displaceAlways: displaceAlways, clusters: map[string]*ranking[types.NamespacedName]{},
		bySource: map[netip.Addr]*list.List{}, byClient: map[types.NamespacedName]map[netip.Addr]*list.List{},
	}
}

// SourceOf is by what clients are counted: an address, or the network of 64 bits of which a host has every address by IPv6.
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

// take takes a slot, nil if the newcomer is refused. Whoever loses a slot for it is told by leave.
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
	if l.taken >= l.most {
		if displaced = l.displaceable(c); displaced == nil {
			return nil, nil
		}
		l.remove(displaced)
	}
	l.number++
	p = &slot{claim: c, number: l.number, leave: leave}
	l.insert(p)
	return p, displaced
}

// give gives the slot back; one that another has taken is not given twice.
func (l *limiter) give(p *slot) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if p.ofSource != nil {
		l.remove(p)
	}
}

// displaceable is the slot that a newcomer takes when all are taken; nil: none.
func (l *limiter) displaceable(c claim) *slot {
	own := l.inCluster(c.cluster)
	namespace, most := l.shared.largest()
	if own == 0 && most > 0 || own > 0 && most > l.shared.count(c.cluster.Namespace)+1 {
		cluster, _ := l.clusters[namespace].largest()
		return l.largestIn(cluster)
	}
	if own == 0 {
		source, most := l.sources.largest()
		if most > l.sources.count(c.source)+1 || most > 0 && l.displaceAlways {
			return l.first(l.bySource[source])
		}
		return nil
	}
	if cluster, most := l.clusters[c.cluster.Namespace].largest(); most > own+1 {
		return l.largestIn(cluster)
	}
	largest := l.largestIn(c.cluster)
	if l.displaceAlways || l.sources.count(largest.source) > l.sources.count(c.source)+1 {
		return largest
	}
	return nil
}

// largestIn is a slot in the cluster, of the source that has the most in all.
func (l *limiter) largestIn(cluster types.NamespacedName) *slot {
	var largest *slot
	most := 0
	for source, slots := range l.byClient[cluster] {
		count, first := l.sources.count(source), l.first(slots)
		if count > most || count == most && (first.number < largest.number) == l.displaceAlways {
			largest, most = first, count
		}
	}
	return largest
}

// first is the slot that gives way first among those of one source.
func (l *limiter) first(slots *list.List) *slot {
	element := slots.Back()
	if l.displaceAlways {
		element = slots.Front()
	}
	p, _ := element.Value.(*slot)
	return p
}

func (l *limiter) inCluster(cluster types.NamespacedName) int {
	if clusters := l.clusters[cluster.Namespace]; clusters != nil {
		return clusters.count(cluster)
	}
	return 0
}

func (l *limiter) insert(p *slot) {
	if l.bySource[p.source] == nil {
		l.bySource[p.source] = list.New()
	}
	if l.byClient[p.cluster] == nil {
		l.byClient[p.cluster] = map[netip.Addr]*list.List{}
	}
	if l.byClient[p.cluster][p.source] == nil {
		l.byClient[p.cluster][p.source] = list.New()
	}
	p.ofSource, p.ofClient = l.bySource[p.source].PushBack(p), l.byClient[p.cluster][p.source].PushBack(p)
	l.count(p, 1)
}

// remove takes the slot away. Clusters and sources come and go for as long as the process runs, so nothing is kept of those
// that have none.
func (l *limiter) remove(p *slot) {
	l.count(p, -1)
	ofSource, ofCluster := l.bySource[p.source], l.byClient[p.cluster]
	ofClient := ofCluster[p.source]
	ofSource.Remove(p.ofSource)
	ofClient.Remove(p.ofClient)
	p.ofSource, p.ofClient = nil, nil
	if ofSource.Len() == 0 {
		delete(l.bySource, p.source)
	}
	if ofClient.Len() == 0 {
		delete(ofCluster, p.source)
	}
	if len(ofCluster) == 0 {
		delete(l.byClient, p.cluster)
	}
}

// count counts a slot that is taken or given back.
func (l *limiter) count(p *slot, change int) {
	namespace := p.cluster.Namespace
	clusters := l.clusters[namespace]
	if clusters == nil {
		clusters = &ranking[types.NamespacedName]{}
		l.clusters[namespace] = clusters
	}
	l.taken += change
	l.sources.add(p.source, change)
	clusters.add(p.cluster, change)
	if left := clusters.count(p.cluster); left > 1 || left == 1 && change < 0 {
		l.shared.add(namespace, change)
	}
	if _, most := clusters.largest(); most == 0 {
		delete(l.clusters, namespace)
	}
}
