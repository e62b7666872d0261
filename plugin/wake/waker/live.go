package waker

import (
	"context"
	"fmt"
	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
)

// readLive reads the Cluster, its instances and the pods of its Poolers from the API server. Nobody is passed on while it does not answer: the clients wait.
func (w *Waker) readLive(ctx context.Context, name types.NamespacedName, seen *snapshot) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	cached, live := seen.cluster, new(cnpgv1.Cluster)
	if err := w.APIReader.Get(ctx, name, live); err != nil {
		return fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if live.UID != cached.UID {
		return fmt.Errorf("read Cluster %s: %w", name, gateway.ErrGone)
	}
	var pods corev1.PodList
	of := client.MatchingLabels{endpointslice.LabelCluster: name.Name}
	if err := w.APIReader.List(ctx, &pods, client.InNamespace(name.Namespace), of); err != nil {
		return fmt.Errorf("list the instances of Cluster %s: %w", name, err)
	}
	seen.cluster = live
	for i := range pods.Items {
		switch pod := &pods.Items[i]; {
		case endpointslice.IsInstance(pod):
			seen.pods = append(seen.pods, *pod)
		case endpointslice.IsPooler(pod):
			seen.bouncers = append(seen.bouncers, *pod)
		}
	}
	return nil
}
