package waker

import (
	"cmp"
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/gateway"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// change carries out a step that changes the Cluster, and writes the value to AnnotationLastWake if the step is a wake.
// wrote reports whether this call changed the Cluster or, with an error, whether it may have. It writes nothing if,
// since the state was read, another replica has taken the step, or a change of the Cluster has made another step due.
func (w *Waker) change(ctx context.Context, seen *snapshot, do step, service gateway.Service, value string) (wrote bool, err error) {
	_, err, _ = w.changing.Do(fmt.Sprintf("%s %d", clusterOf(service), do), func() (any, error) { // a concurrent call that shares the result wrote nothing
		cluster, pods := seen.cluster, len(seen.pods)
		for {
			view := plan.View(cluster, time.Now())
			if next(view, pods) != do {
				return nil, nil
			}
			err := Annotate(ctx, w.Client, cluster, changes(do, view.Fenced, value))
			if !apierrors.IsConflict(err) {
				wrote = true
				return nil, err
			}
			cluster = new(cnpgv1.Cluster)
			if err := w.APIReader.Get(ctx, clusterOf(service), cluster); err != nil {
				return nil, fmt.Errorf("read Cluster %s: %w", clusterOf(service), err)
			}
		}
	})
	return wrote, err
}

// changes returns the changes of a Cluster's annotations by a step, for one patch. fenced says that the fence is this
// project's, and is removed; a person's fence stays.
func changes(do step, fenced bool, lastWake string) map[string]*string {
	changes := map[string]*string{contract.AnnotationAnnounced: nil, contract.AnnotationGatewayReady: nil, contract.AnnotationGatewayHolding: nil}
	if do == stepWithdraw {
		return changes
	}
	changes[contract.AnnotationLastWake] = &lastWake
	changes[contract.AnnotationDozingSince], changes[contract.AnnotationPostgresStopped] = nil, nil
	changes[contract.AnnotationSleepRequested] = nil // the client that wakes the cluster overrides it
	if fenced {
		changes[contract.AnnotationFencedInstances] = nil
	}
	if do == stepEndHibernation {
		changes[contract.AnnotationHibernation], changes[contract.AnnotationAsleepSince], changes[contract.AnnotationAsleepReason] = nil, nil, nil
	}
	return changes
}

// Changes returns the changes of a Cluster's annotations that wake it for the cause now, with how many pods are left;
// nil if it does not sleep or cannot be woken yet, because PostgreSQL may still stop.
func Changes(cause contract.Cause, cluster plan.Cluster, pods int, lastWake string) map[string]*string {
	do := nextFor(cause, cluster, pods)
	if do != stepUnfence && do != stepEndHibernation {
		return nil
	}
	return changes(do, cluster.Fenced, lastWake)
}

// returnsWithin is how soon after the cluster fell asleep a client comes that has only been cut, or has not heard of
// the sleep.
const returnsWithin = 10 * time.Second

// returned reports whether a client that has waited since then came within returnsWithin.
func returned(cluster *cnpgv1.Cluster, since time.Time) bool {
	asleep, err := time.Parse(time.RFC3339, cmp.Or(cluster.Annotations[contract.AnnotationAsleepSince], cluster.Annotations[contract.AnnotationDozingSince]))
	return err == nil && since.Before(asleep.Add(returnsWithin))
}

// lastWake returns the annotation's value for a wake by the client. returned says that the client came while the
// cluster fell asleep, or just after.
func lastWake(cluster *cnpgv1.Cluster, service gateway.Service, by gateway.Client, do step, returned bool) (string, error) {
	wake := contract.LastWake{
		At: time.Now(), By: by.Peer.Addr().Unmap().String(), User: contract.ShortName(by.User),
		Database: contract.ShortName(by.Database), Service: service.Name,
	}
	if before, _, ok := unusedWake(cluster, by); ok {
		wake.Unused = before.Unused + 1
	}
	if before, err := contract.ParseLastWake(cluster.Annotations[contract.AnnotationLastWake]); returned && err == nil {
		wake.Returns = before.Returns
	}
	if returned {
		wake.Returns++
	}
	if do == stepUnfence {
		wake.Depth = contract.DepthDoze
	} else {
		wake.Since = contract.ShortName(cluster.Annotations[contract.AnnotationAsleepSince])
	}
	return wake.Encode()
}
