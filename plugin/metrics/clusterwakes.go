package metrics

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

// clusterWakes counts the wakes of each cluster. The [Fleet] shows two series of each cluster that exists, one for wakes that
// succeeded and one for those that did not in time, and has the others forgotten.
type clusterWakes struct {
	mutex  sync.Mutex
	counts map[types.NamespacedName]wakeCounts
}

type wakeCounts struct{ succeeded, timedOut uint64 }

func (w *clusterWakes) count(cluster types.NamespacedName, result waker.Result) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	counts := w.counts[cluster]
	switch result {
	case waker.ResultSuccess:
		counts.succeeded++
	case waker.ResultTimeout:
		counts.timedOut++
	case waker.ResultByHand, waker.ResultMaintenance:
		return // nobody tried to wake it
	}
	w.counts[cluster] = counts
}

func (w *clusterWakes) of(cluster types.NamespacedName) wakeCounts {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.counts[cluster]
}

// keep forgets the clusters that do not exist.
func (w *clusterWakes) keep(exists func(types.NamespacedName) bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for cluster := range w.counts {
		if !exists(cluster) {
			delete(w.counts, cluster)
		}
	}
}
