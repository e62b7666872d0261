package wake

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/endpointslice"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/ports"
)

// sweepEvery is how often ports are checked for Services that are gone.
const sweepEvery = time.Minute

// Sweep frees the ports of Services that are gone, every minute until the context ends. It passes used the number of
// ports of existing Services.
func (r *router) Sweep(ctx context.Context, used func(int)) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		count, err := r.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			r.Logger.Warn("cannot free the ports of Services that are gone", "error", err.Error())
		} else {
			used(count)
		}
	}, sweepEvery)
}

// sweep frees the ports of Services that neither the informers nor the API server know, and removes slices of no
// cluster.
func (r *router) sweep(ctx context.Context) (int, error) {
	if err := r.removeStray(ctx); err != nil {
		return 0, err
	}
	owners, err := r.ports.Owners(ctx)
	if err != nil {
		return 0, err
	}
	var gone []types.UID
	for _, owner := range owners {
		known, err := r.Informers.ServiceUID(ctx, types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name})
		if err != nil {
			return 0, err
		}
		if known == owner.UID {
			continue
		}
		ok, err := r.isGone(ctx, owner)
		if err != nil {
			return 0, err
		}
		if ok {
			gone = append(gone, owner.UID)
		}
	}
	if len(gone) == 0 {
		return len(owners), nil
	}
	if err := r.ports.Free(ctx, gone, time.Now()); err != nil {
		return 0, err
	}
	return len(owners) - len(gone), nil
}

// removeStray removes slices of ours that name no cluster, because they were made so or have lost the label: no
// reconciliation sees them, and each would keep a port from being given. It forgets the condemned ones that are gone.
func (r *router) removeStray(ctx context.Context) error {
	gone := sets.New(r.condemned.Keys()...)
	all, err := r.Informers.OurSlices(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		slice := &all[i]
		gone.Delete(slice.UID)
		if slice.Labels[endpointslice.LabelCluster] == "" {
			if err := r.remove(ctx, slice); err != nil {
				return err
			}
		}
	}
	for slice := range gone {
		r.condemned.Delete(slice)
	}
	return nil
}

// isGone asks the API server, because the informers may lag behind. An owner that cannot be parsed is never gone.
func (r *router) isGone(ctx context.Context, owner ports.Owner) (bool, error) {
	if owner.Namespace == "" || owner.Name == "" {
		return false, nil
	}
	var service corev1.Service
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: owner.Namespace, Name: owner.Name}, &service)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read Service %s/%s: %w", owner.Namespace, owner.Name, err)
	}
	return service.UID != owner.UID, nil
}
