package wake

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// unattended wakes clusters for which no client waits at the gateway, and takes over the hibernation of listed tools.
type unattended struct {
	*Access
	budget   *waker.Budget
	observer waker.Observer
	begun    sync.Map // those of this replica that have not ended, by cluster: [begunWake]
}

// begunWake is a wake that has begun.
type begunWake struct {
	at    time.Time
	value string // of the annotation of the last wake
	depth waker.Depth
	due   plan.Wake
}

// wakeCluster wakes the cluster, unless that must wait: it is still stopping, or the budget is used up. The API server
// takes the first patch of all replicas, and refuses the others; the next plan has the Event.
func (w *unattended) wakeCluster(ctx context.Context, cluster *cnpgv1.Cluster, view plan.Cluster, pods int, due plan.Wake, now time.Time) (begun bool, err error) {
	name := client.ObjectKeyFromObject(cluster)
	wake := contract.LastWake{At: now, Cause: due.Cause, By: due.By, Unused: due.Unused}
	depth := waker.DepthHibernation
	if view.Dozing {
		depth, wake.Depth = waker.DepthDoze, contract.DepthDoze
	} else {
		wake.Since = contract.ShortName(cluster.Annotations[contract.AnnotationAsleepSince])
	}
	value, err := wake.Encode()
	if err != nil {
		return false, err
	}
	changes := waker.Changes(due.Cause, view, pods, value)
	if changes == nil || depth == waker.DepthHibernation && !w.budget.Take(netip.Addr{}, name, now) {
		return false, nil
	}
	if err := waker.Annotate(ctx, w.Client, cluster, changes); err != nil {
		if !apierrors.IsConflict(err) { // only its answer may have been lost
			w.begun.LoadOrStore(name, begunWake{now, value, depth, due})
		}
		return false, ignoreConflict(err)
	}
	w.begun.Store(name, begunWake{now, value, depth, due})
	w.Logger.Info("a cluster is woken", "namespace", name.Namespace, "cluster", name.Name, "depth", depth, "cause", due.Cause, "by", due.By)
	return true, nil
}

// wake carries out a wake that is due.
func (w *unattended) wake(ctx context.Context, seen *snapshot, due *plan.Wake, again *requeue) error {
	if due == nil {
		return nil
	}
	pods, err := w.Informers.Pods(ctx, seen.name)
	if err != nil {
		return err
	}
	begun, err := w.wakeCluster(ctx, seen.cluster, seen.view, len(pods), *due, again.now)
	if !begun && (seen.view.Hibernated || seen.view.Stopped) { // before, a change of the Cluster says when
		again.at(again.now.Add(time.Second))
	}
	return err
}

// observe observes how a wake ended that this replica began. No client waits for it at the gateway, so it ends when the
// primary is ready.
func (w *unattended) observe(ctx context.Context, seen *snapshot, again *requeue) error {
	stored, _ := w.begun.Load(seen.name)
	begun, ok := stored.(begunWake)
	if !ok {
		return nil
	}
	until, sleeps := begun.at.Add(w.Settings.WakeTimeout), seen.view.HibernationOn || seen.view.Dozing
	ours := seen.cluster != nil && seen.cluster.Annotations[contract.AnnotationLastWake] == begun.value
	switch late := !again.now.Before(until); {
	case seen.cluster == nil, ours && sleeps, !ours && late: // it sleeps again, or the API server has refused the wake
		w.begun.Delete(seen.name)
		return nil
	case ours && seen.state.Serves():
		w.begun.Delete(seen.name)
		w.observer.Woke(seen.name, begun.due.Cause, begun.depth, waker.ResultSuccess, again.now.Sub(begun.at))
		return nil
	case !late:
		again.at(until)
		return nil
	}
	err := w.Events.Write(ctx, seen.cluster, plan.Event{
		Warning: true, Reason: "WakeTimedOut", Occasion: begun.value, Message: fmt.Sprintf(
			"No instance accepted sessions within %s of the wake for %s", w.Settings.WakeTimeout, begun.due.By),
	}, again.now)
	if err == nil {
		w.begun.Delete(seen.name)
		w.observer.Woke(seen.name, begun.due.Cause, begun.depth, waker.ResultTimeout, again.now.Sub(begun.at))
	}
	return err
}
