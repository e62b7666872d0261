package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// left returns how many entries the limiter keeps.
func (l *limiter) left() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.slots) + len(l.clusters) + len(l.namespaces) + len(l.owners) + len(l.sources)
}

func of(namespace, cluster, source string) claim {
	return claim{cluster: types.NamespacedName{Namespace: namespace, Name: cluster}, source: netip.MustParseAddr(source)}
}

// naive implements the rule in the limiter's comment on a list of the taken slots.
type naive []*slot

func (n naive) count(matches func(claim) bool) int {
	count := 0
	for _, p := range n {
		if matches(p.claim) {
			count++
		}
	}
	return count
}

func (n naive) inCluster(c claim) int {
	return n.count(func(o claim) bool { return o.cluster == c.cluster })
}

func (n naive) ofSource(c claim) int {
	return n.count(func(o claim) bool { return o.source == c.source })
}

// shared returns the namespace's slots without its clusters' own.
func (n naive) shared(c claim) int {
	own := map[types.NamespacedName]bool{}
	for _, p := range n {
		own[p.cluster] = own[p.cluster] || p.cluster.Namespace == c.cluster.Namespace
	}
	clusters := 0
	for _, counted := range own {
		if counted {
			clusters++
		}
	}
	return n.count(func(o claim) bool { return o.cluster.Namespace == c.cluster.Namespace }) - clusters
}

// most returns the slots of the groups that have the most, and that number.
func (n naive) most(size func(claim) int) (naive, int) {
	var most naive
	largest := -1
	for _, p := range n {
		switch count := size(p.claim); {
		case count > largest:
			most, largest = naive{p}, count
		case count == largest:
			most = append(most, p)
		}
	}
	return most, largest
}

// within returns, for each group, the slots of its members that have the most.
func (n naive) within(group func(claim) string, size func(claim) int) naive {
	groups := map[string]naive{}
	for _, p := range n {
		groups[group(p.claim)] = append(groups[group(p.claim)], p)
	}
	var kept naive
	for _, slots := range groups {
		most, _ := slots.most(size)
		kept = append(kept, most...)
	}
	return kept
}

func namespaceOf(c claim) string { return c.cluster.Namespace }
func clusterOf(c claim) string   { return c.cluster.String() }

// displaceable returns the slots of which the newcomer takes one; if empty, the newcomer is refused.
func (n naive) displaceable(c claim, always bool) naive {
	own := n.inCluster(c)
	namespaces, shared := n.most(n.shared)
	ours := slices.DeleteFunc(slices.Clone(n), func(p *slot) bool { return p.cluster.Namespace != c.cluster.Namespace })
	clusters, most := ours.most(n.inCluster)
	candidates := slices.DeleteFunc(slices.Clone(n), func(p *slot) bool { return own > 0 && p.cluster != c.cluster })
	sources, source := candidates.most(n.ofSource)
	switch {
	case own == 0 && shared > 0, own > 0 && shared > n.shared(c)+1:
		return namespaces.within(namespaceOf, n.inCluster).within(clusterOf, n.ofSource)
	case own > 0 && most > own+1:
		return clusters.within(clusterOf, n.ofSource)
	case source > n.ofSource(c)+1 || always:
		return sources
	default:
		return nil
	}
}

// clients are in two namespaces with two clusters each, from three addresses.
func clients() []claim {
	var all []claim
	for _, namespace := range []string{"a", "b"} {
		for _, cluster := range []string{"one", "two"} {
			for _, source := range []string{"10.0.0.1", "10.0.0.2", "2001:db8::"} {
				all = append(all, of(namespace, cluster, source))
			}
		}
	}
	return all
}

// check lets a newcomer take a slot of a full limiter, and compares the result with the naive rule.
func check(t *testing.T, l *limiter, taken naive, newcomer claim) *slot {
	t.Helper()
	before := len(taken)
	may := taken.displaceable(newcomer, l.displaceAlways)
	var displaced []*slot
	for _, p := range taken {
		p.leave = func() { displaced = append(displaced, p) }
	}
	p := l.take(newcomer, func() {})
	switch {
	case before < l.most && (p == nil || len(displaced) != 0):
		t.Fatalf("a slot was free, and %v was refused or took another", newcomer)
	case before < l.most:
	case (p == nil) != (len(may) == 0):
		t.Fatalf("%v: refused is %t, want %t, over %v", newcomer, p == nil, len(may) == 0, claimsOf(taken))
	case p != nil && (len(displaced) != 1 || !slices.Contains(may, displaced[0])):
		t.Fatalf("%v took the slots of %v, want one of %v", newcomer, claimsOf(displaced), claimsOf(may))
	}
	return p
}

func claimsOf(slots []*slot) string {
	text := ""
	for _, p := range slots {
		text += fmt.Sprintf("%s from %s; ", p.cluster, p.source)
	}
	return text
}

// every calls the function with each multiset of up to size clients.
func every(size int, function func([]claim)) {
	all := clients()
	var extend func(chosen []claim, from int)
	extend = func(chosen []claim, from int) {
		function(chosen)
		if len(chosen) == size {
			return
		}
		for i := from; i < len(all); i++ {
			extend(append(slices.Clone(chosen), all[i]), i)
		}
	}
	extend(nil, 0)
}

// TestLimiter_followsItsRuleInEveryState takes up to four slots in every combination of clients, and then tries every client as a
// newcomer.
func TestLimiter_followsItsRuleInEveryState(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{false, true} {
		every(4, func(chosen []claim) {
			for _, newcomer := range clients() {
				if len(chosen) == 0 {
					continue
				}
				l := newLimiter(len(chosen), always)
				var taken naive
				for _, c := range chosen {
					taken = append(taken, check(t, l, taken, c))
				}
				check(t, l, taken, newcomer)
			}
		})
	}
}

// TestLimiter_followsItsRuleOverTime lets clients come and go at random, and finally all leave.
func TestLimiter_followsItsRuleOverTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0)) // a test that can be repeated
		l := newLimiter(20, seed%2 == 0)
		var taken naive
		for range 500 {
			if len(taken) > 0 && random.IntN(3) == 0 {
				at := random.IntN(len(taken))
				l.give(taken[at])
				l.give(taken[at])
				taken = slices.Delete(taken, at, at+1)
				continue
			}
			all := clients()
			if p := check(t, l, taken, all[random.IntN(len(all))]); p != nil {
				taken = append(taken, p)
			}
			taken = slices.DeleteFunc(taken, func(p *slot) bool { return !slices.Contains(l.slots, p) })
			if len(l.slots) != len(taken) || len(taken) > l.most {
				t.Fatalf("%d slots are taken, want %d", len(l.slots), len(taken))
			}
		}
		for _, p := range taken {
			l.give(p)
		}
		if left := l.left(); left != 0 {
			t.Errorf("%d entries are left", left)
		}
	}
}

// TestLimiter_promises tests what users are promised, each with a limiter of 100 slots that others have taken.
func TestLimiter_promises(t *testing.T) {
	t.Parallel()
	address := func(i int) string { return fmt.Sprintf("10.0.%d.%d", i/250, i%250+1) }
	name := func(i int) string { return fmt.Sprintf("c%d", i) }
	for _, row := range []struct {
		rule   string
		attack func(int) claim
		honest func(int) claim
		served int // of as many as there are slots
	}{
		{
			"clusters that have nothing get a slot each from a tenant that has taken all", //
			func(i int) claim { return of("greedy", name(i%4), "10.1.0.1") },
			func(i int) claim { return of("shop", name(i), address(i)) }, 99,
		},
		{
			"clusters that have nothing get a slot each although they share the sender's address", //
			func(i int) claim { return of("greedy", name(i%4), "10.1.0.1") },
			func(i int) claim { return of(name(i), "orders", "10.1.0.1") }, 96,
		},
		{
			"clusters that a few addresses connect to as well get nearly all slots", //
			func(i int) claim { return of(name(i%50), "orders", fmt.Sprintf("10.1.0.%d", i%10)) },
			func(i int) claim { return of(name(i%50), "orders", address(i)) }, 90,
		},
		{
			"a cluster gets half of the slots from another of its namespace", //
			func(int) claim { return of("shop", "reports", "10.1.0.1") },
			func(int) claim { return of("shop", "orders", "10.1.0.1") }, 50,
		},
		{
			"a namespace gets half of the shared slots however many clusters the other has", //
			func(i int) claim { return of("greedy", name(i%25), address(i)) },
			func(i int) claim { return of("shop", "orders", address(i)) }, 38,
		},
		{
			"a client gets a slot in a cluster that one address has taken", //
			func(int) claim { return of("shop", "orders", "10.1.0.1") },
			func(int) claim { return of("shop", "orders", "10.1.0.2") }, 50,
		},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			l := newLimiter(100, false)
			for i := range l.most {
				l.take(row.attack(i), func() {})
			}
			served := 0
			for i := range l.most {
				if l.take(row.honest(i), func() { served-- }) != nil {
					served++
				}
			}
			if served != row.served {
				t.Errorf("%d are served, want %d", served, row.served)
			}
		})
	}
}

func TestSourceOf_isAnAddressOrANetworkOf64Bits(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8::1:2:3:4": "2001:db8::", "fe80::1%eth0": "fe80::",
	} {
		if got := SourceOf(netip.MustParseAddr(address)).String(); got != want {
			t.Errorf("the source of %s is %s, want %s", address, got, want)
		}
	}
	if got := SourceOf(netip.Addr{}); got.IsValid() {
		t.Errorf("the source of nothing is %s", got)
	}
}

func TestSessions_shareWhatIsFree(t *testing.T) {
	t.Parallel()
	s := newSessions(60)
	for _, row := range []struct {
		rule    string
		cluster types.NamespacedName
		got     int
	}{
		{"one namespace has at most half", types.NamespacedName{Namespace: "greedy", Name: "one"}, 30},
		{"each of its clusters has one nevertheless", types.NamespacedName{Namespace: "greedy", Name: "two"}, 1},
		{"another has half of the rest", types.NamespacedName{Namespace: "shop", Name: "orders"}, 15},
		{"and so on", types.NamespacedName{Namespace: "blog", Name: "posts"}, 7},
	} {
		got := 0
		for s.take(row.cluster) {
			got++
		}
		if got != row.got {
			t.Errorf("%s: got %d, want %d", row.rule, got, row.got)
		}
	}
	for i := range 7 {
		if !s.take(types.NamespacedName{Namespace: "more", Name: fmt.Sprint(i)}) {
			t.Errorf("a cluster without a session was refused the slot %d", i)
		}
	}
	if s.take(types.NamespacedName{Namespace: "more", Name: "last"}) {
		t.Error("there are more sessions than slots")
	}
}

// BenchmarkLimiter_whenAllSlotsAreTaken is what a connection costs under attack: some tens of microseconds at most.
func BenchmarkLimiter_whenAllSlotsAreTaken(b *testing.B) {
	for _, row := range []struct {
		rule                          string
		namespaces, clusters, sources int
	}{
		{"of one cluster by one source", 1, 1, 1},
		{"of one cluster by every source", 1, 1, 5000},
		{"of the clusters of a namespace", 1, 5000, 250},
		{"of 500 namespaces", 500, 500, 250},
		{"of a namespace for each", 5000, 5000, 5000},
	} {
		b.Run(row.rule, func(b *testing.B) {
			claims := make([]claim, 7919)
			for i := range claims {
				namespace, cluster := fmt.Sprint("tenant-", i%row.namespaces), fmt.Sprint("orders-", i%row.clusters)
				source := i % row.sources
				claims[i] = of(namespace, cluster, fmt.Sprintf("10.0.%d.%d", source/250, source%250))
			}
			l := newLimiter(4096, true)
			for i := 0; i < l.most || b.Loop(); i++ {
				l.take(claims[i%len(claims)], func() {})
			}
		})
	}
}
