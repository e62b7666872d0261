package metrics

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
)

// clusterWakes counts the wakes of each cluster. The [Fleet] shows two series for each existing cluster, one for successful
// wakes and one for those that timed out, and removes the counts of other clusters.
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
		return // no wake was attempted
	}
	w.counts[cluster] = counts
}

func (w *clusterWakes) of(cluster types.NamespacedName) wakeCounts {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.counts[cluster]
}

// keep removes the counts of clusters that do not exist.
func (w *clusterWakes) keep(exists func(types.NamespacedName) bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	for cluster := range w.counts {
		if !exists(cluster) {
			delete(w.counts, cluster)
		}
	}
}
