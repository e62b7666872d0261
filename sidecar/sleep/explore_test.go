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

// exploration is every state that can be reached.
type exploration struct {
	ids     map[key]int32
	parents []int32
	names   []name
	// fair are the successors by fair moves, behind one another, and ends where those of each state end.
	fair    []int32
	ends    []int
	settled []bool
	moves   int
	// frontier are the states whose moves are not made yet.
	frontier []world
}

// explore visits every state that can be reached from a cluster that is awake.
func explore(t *testing.T) *exploration {
	t.Helper()
	e := &exploration{ids: map[key]int32{}}
	e.reach(t, &world{primary: true, behind: true}, -1, name{"the sidecar", " starts"})
	var next []move
	for id := int32(0); len(e.frontier) != 0; {
		layer := e.frontier
		e.frontier = nil
		for i := range layer {
			next = moves(next[:0], &layer[i])
			for _, m := range next {
				w := layer[i]
				m.make(&w)
				e.moves++
				if to := e.reach(t, &w, id, m.name); m.fair {
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
func (e *exploration) reach(t *testing.T, w *world, parent int32, by name) int32 {
	k := w.key()
	if id, ok := e.ids[k]; ok && w.violation == "" {
		return id
	}
	id := int32(len(e.parents))
	e.ids[k] = id
	e.parents, e.names = append(e.parents, parent), append(e.names, by)
	if w.check(); w.violation != "" {
		t.Fatalf("%s:\n%s", w.violation, e.trace(id))
	}
	e.settled, e.frontier = append(e.settled, w.settled()), append(e.frontier, *w)
	return id
}

// trace is how a state came about.
func (e *exploration) trace(id int32) string {
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

// stuck is a state from which no fair moves lead to one to stay in; ok reports whether there is one.
func (e *exploration) stuck() (id int32, ok bool) {
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
	began := time.Now()
	e := explore(t)
	if id, ok := e.stuck(); ok {
		t.Errorf("nothing leads on from here:\n%s", e.trace(id))
	}
	t.Logf("%d states, %d moves, explored in %s", len(e.parents), e.moves, time.Since(began).Round(time.Second))
}
