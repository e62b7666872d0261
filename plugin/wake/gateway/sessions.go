package gateway

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// sessions assigns the session slots. Nobody loses one to another. A cluster's first session gets a slot while any is free;
// further sessions only while the cluster's namespace has fewer slots than are free. So one namespace gets at most half of them,
// two get a third each, and some are always left for others.
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

// take takes a slot if one is left for the cluster.
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

// give frees a slot.
func (s *sessions) give(cluster types.NamespacedName) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.taken--
	s.clusters.add(cluster, -1)
	s.namespaces.add(cluster.Namespace, -1)
}

// count returns how many sessions there are.
func (s *sessions) count() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.taken
}
