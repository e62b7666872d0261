package sleep

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var maximumStates = flag.Int("states", 20_000_000, "give up exploring after so many states")

// explorable is a pointer to a world, which is a value.
type explorable[W any] interface {
	*W
	visited[W]
}

// visited is what an exploration asks of a world.
type visited[W any] interface {
	// key tells it from every other.
	key() key
	// check asserts what must hold in every state, and broken is the first promise that was broken, or empty.
	check()
	broken() string
	// settled reports whether the state is one to stay in.
	settled() bool
	// next appends all that can happen next.
	next([]move[W]) []move[W]
}

var (
	_ visited[world]  = (*world)(nil)
	_ visited[dozer]  = (*dozer)(nil)
	_ visited[routed] = (*routed)(nil)
	_ visited[pair]   = (*pair)(nil)
)

// exploration is every state that can be reached.
type exploration[W any, P explorable[W]] struct {
	ids     map[key]int32
	parents []int32
	names   []name
	// fair are the successors by fair moves, behind one another, and ends where those of each state end.
	fair    []int32
	ends    []int
	settled []bool
	moves   int
	// frontier are the states whose moves are not made yet.
	frontier []W
}

// explore visits every state that can be reached from a first one.
func explore[W any, P explorable[W]](t *testing.T, first W) *exploration[W, P] {
	t.Helper()
	e := &exploration[W, P]{ids: map[key]int32{}}
	e.reach(t, first, -1, name{"the sidecar", " starts"})
	var next []move[W]
	for id := int32(0); len(e.frontier) != 0; {
		layer := e.frontier
		e.frontier = nil
		for i := range layer {
			next = P(&layer[i]).next(next[:0])
			for _, m := range next {
				w := layer[i]
				m.make(&w)
				e.moves++
				if to := e.reach(t, w, id, m.name); m.fair {
					e.fair = append(e.fair, to)
				}
			}
			e.ends = append(e.ends, len(e.fair))
			id++
		}
		if len(e.parents) > *maximumStates {
			t.Fatalf("more than %d states", *maximumStates)
		}
	}
	return e
}

// reach is the number of a state, which is a new one or known.
func (e *exploration[W, P]) reach(t *testing.T, reached W, parent int32, by name) int32 {
	w := P(&reached)
	k := w.key()
	if id, ok := e.ids[k]; ok && w.broken() == "" {
		return id
	}
	id := int32(len(e.parents))
	e.ids[k] = id
	e.parents, e.names = append(e.parents, parent), append(e.names, by)
	if w.check(); w.broken() != "" {
		t.Fatalf("%s:\n%s", w.broken(), e.trace(id))
	}
	e.settled, e.frontier = append(e.settled, w.settled()), append(e.frontier, reached)
	return id
}

// trace is how a state came about.
func (e *exploration[W, P]) trace(id int32) string {
	var lines []string
	for ; id >= 0; id = e.parents[id] {
		lines = append(lines, e.names[id].String())
	}
	slices.Reverse(lines)
	for i, line := range lines {
		lines[i] = fmt.Sprintf("%3d %s", i, line)
	}
	return strings.Join(lines, "\n")
}

// stuck returns a state from which fair moves never lead to a settled one; ok reports whether there is one.
func (e *exploration[W, P]) stuck() (id int32, ok bool) {
	before := make([][]int32, len(e.ends))
	begin := 0
	for from, end := range e.ends {
		for _, to := range e.fair[begin:end] {
			before[to] = append(before[to], int32(from))
		}
		begin = end
	}
	reaches := slices.Clone(e.settled)
	var queue []int32
	for id, settled := range e.settled {
		if settled {
			queue = append(queue, int32(id))
		}
	}
	for ; len(queue) != 0; queue = queue[1:] {
		for _, from := range before[queue[0]] {
			if !reaches[from] {
				reaches[from] = true
				queue = append(queue, from)
			}
		}
	}
	at := slices.Index(reaches, false)
	return int32(at), at >= 0
}

// TestMachine_everyReachableState explores every interleaving of the Machine with an API server that loses answers and carries
// requests out late, a watch that lags, the operator, the gateway, a sibling, a person, clients, and restarts and failovers
// at every step.
func TestMachine_everyReachableState(t *testing.T) {
	t.Parallel()
	exploreAll(t, world{primary: true, behind: true})
}

// TestMachine_everyReachableStateOfADoze does the same for a cluster of one instance that dozes, with models of the kubelet and
// the instance manager too.
func TestMachine_everyReachableStateOfADoze(t *testing.T) {
	t.Parallel()
	exploreAll(t, dozer{behind: true, mayDoze: true, endpoint: true})
}

// TestMachine_everyReachableStateOfADeadline does so for the Machine together with plan.Decide.
func TestMachine_everyReachableStateOfADeadline(t *testing.T) {
	t.Parallel()
	exploreAll(t, routed{world: world{primary: true, behind: true, client: nobody}})
}

// TestMachine_everyReachableStateOfTwoInstances does so for the Machines of two instances, with switchovers between them.
func TestMachine_everyReachableStateOfTwoInstances(t *testing.T) {
	t.Parallel()
	exploreAll(t, pair{of: [2]world{{primary: true, behind: true}, {behind: true}}, switchovers: 2})
}

// exploreAll also asserts that every state leads on.
func exploreAll[W any, P explorable[W]](t *testing.T, first W) {
	t.Helper()
	began := time.Now()
	e := explore[W, P](t, first)
	if id, ok := e.stuck(); ok {
		t.Errorf("nothing leads on from here:\n%s", e.trace(id))
	}
	t.Logf("%d states, %d moves, explored in %s", len(e.parents), e.moves, time.Since(began).Round(time.Second))
}
