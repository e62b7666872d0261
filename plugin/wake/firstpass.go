package wake

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// firstTries is how many reconciliations of a cluster may fail before a replica that starts goes on without it: one bad cluster must
// not stop a rollout. With the waits between them, see [firstRetry], they take ten seconds.
const firstTries = 12

// firstPass are the first reconciliations after the start: once each cluster has had its own, what leads clients to this replica
// stands.
type firstPass struct {
	mutex  sync.Mutex
	over   bool
	passed map[types.NamespacedName]bool
	failed map[types.NamespacedName]int
}

// note remembers how a reconciliation of a cluster ended. It reports whether that was the last failure that is waited for.
func (p *firstPass) note(cluster types.NamespacedName, err error) (givenUp bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.over || p.passed[cluster] {
		return false
	}
	if p.passed == nil {
		p.passed, p.failed = map[types.NamespacedName]bool{}, map[types.NamespacedName]int{}
	}
	if err != nil {
		p.failed[cluster]++
		givenUp = p.failed[cluster] == firstTries
	}
	p.passed[cluster] = err == nil || givenUp
	return givenUp
}

// outstanding is how many of the clusters have not passed yet.
func (p *firstPass) outstanding(of []types.NamespacedName) int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.over {
		return 0
	}
	count := 0
	for _, cluster := range of {
		if !p.passed[cluster] {
			count++
		}
	}
	return count
}

// end ends the pass, whatever is outstanding.
func (p *firstPass) end() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.over, p.passed, p.failed = true, nil, nil
}

func (p *firstPass) isOver() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.over
}
