package gateway

import (
	"container/list"
	"net/netip"
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

	mutex  sync.Mutex
	taken  int
	number uint64 // of the newest slot
	// shared counts the slots of each namespace without the first of each cluster.
	shared   ranking[string]
	clusters map[string]*ranking[types.NamespacedName]
	sources  ranking[netip.Addr]
	// bySource and byClient are the slots of each source, and of each source within a cluster, oldest first.
	bySource map[netip.Addr]*list.List
	byClient map[types.NamespacedName]map[netip.Addr]*list.List
}

// claim identifies the client that a slot is counted for.
type claim struct {
	cluster types.NamespacedName
	source  netip.Addr
}

// slot is a taken slot.
type slot struct {
	claim
	// number increases with every slot taken.
	number uint64
	// leave is called when a newcomer takes the slot over.
	leave              func()
	ofSource, ofClient *list.Element // nil once the slot is free again
}

func newLimiter(most int, displaceAlways bool) *limiter {
	return &limiter{
		most: most, displaceAlways: displaceAlways, clusters: map[string]*ranking[types.NamespacedName]{},
		bySource: map[netip.Addr]*list.List{}, byClient: map[types.NamespacedName]map[netip.Addr]*list.List{},
	}
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

// give frees the slot, unless another client has already taken it over.
func (l *limiter) give(p *slot) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if p.ofSource != nil {
		l.remove(p)
	}
}

// displaceable returns the slot that a newcomer takes over when all are taken, or nil.
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

// largestIn returns a slot in the cluster, of the source that has the most slots overall.
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

// first returns the slot of a source that is displaced first.
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

// remove frees the slot. It deletes empty entries, because clusters and sources come and go for as long as the process runs.
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

// count adjusts the counters for a slot that was taken or freed.
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
