package gateway

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// places are a limited number, of which one cluster may take a part.
type places struct {
	most, mostPerCluster int

	mutex      sync.Mutex
	taken      int
	perCluster map[types.NamespacedName]int
}

func newPlaces(most, mostPerCluster int) *places {
	return &places{most: most, mostPerCluster: mostPerCluster, perCluster: map[types.NamespacedName]int{}}
}

// take takes a place, if one is left.
func (p *places) take(cluster types.NamespacedName) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.taken >= p.most || p.perCluster[cluster] >= p.mostPerCluster {
		return false
	}
	p.taken++
	p.perCluster[cluster]++
	return true
}

// give gives one back.
func (p *places) give(cluster types.NamespacedName) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.taken--
	if p.perCluster[cluster]--; p.perCluster[cluster] == 0 {
		delete(p.perCluster, cluster) // clusters come and go for as long as the process runs
	}
}
