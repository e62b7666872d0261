package wake

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/events"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/plugin/wake/waker"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// backupTakes limits the wake for a Backup: the operator waits for the answer.
const backupTakes = 5 * time.Second

// WakeForBackup wakes the cluster if it dozes, and reports whether its Backup has to wait for that. The operator asks again as long
// as it has to, and whenever the Backup is pending. One of a hibernated cluster the operator has failed before it asks.
func (c *Controller) WakeForBackup(ctx context.Context, name types.NamespacedName, backup string) (waits bool) {
	ctx, cancel := context.WithTimeout(ctx, backupTakes)
	defer cancel()
	waits, err := c.wakeForBackup(ctx, name, backup)
	if err != nil {
		c.Logger.Warn("a dozing cluster could not be woken for its Backup",
			"namespace", name.Namespace, "cluster", name.Name, "backup", backup, "error", err.Error())
	}
	return waits
}

func (c *Controller) wakeForBackup(ctx context.Context, name types.NamespacedName, backup string) (waits bool, err error) {
	cluster, err := c.Informers.Cluster(ctx, name)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	now := time.Now()
	switch view := plan.View(cluster, now); {
	case view.Gone:
		return false, nil
	case view.Unsettled, view.Dozing && !view.Stopped: // to lift the fence now would not keep PostgreSQL from stopping
		return true, nil
	case !view.Dozing:
		return false, nil
	}
	wake, err := contract.LastWake{At: now, By: "Backup " + backup, Depth: contract.DepthDoze}.Encode()
	if err != nil {
		return true, err
	}
	err = waker.Annotate(ctx, c.Client, cluster, waker.Unfence(wake))
	if apierrors.IsConflict(err) {
		return true, nil // the operator asks again
	}
	if err != nil {
		return true, err
	}
	c.backupWakes.Store(name, now)
	c.Logger.Info("a dozing cluster is woken for its Backup", "namespace", name.Namespace, "cluster", name.Name, "backup", backup)
	return true, c.Events.Write(ctx, cluster, events.Event{
		Reason: "Woken", Message: "Woken from a doze for Backup " + backup, Occasion: wake,
	}, now)
}

// observeBackupWake tells how a wake for a Backup has ended that this replica began. Nobody waits for it here, so it is over once
// the kubelet takes PostgreSQL for ready.
func (c *Controller) observeBackupWake(seen *snapshot, again *requeue) {
	stored, begun := c.backupWakes.Load(seen.name)
	if !begun {
		return
	}
	since, _ := stored.(time.Time)
	until, result := since.Add(c.Settings.WakeTimeout), waker.ResultSuccess
	switch {
	case seen.cluster == nil:
		c.backupWakes.Delete(seen.name)
		return
	case !seen.sleeps(again.now) && seen.serves(seen.cluster.GetServiceReadWriteName()):
	case again.now.Before(until):
		again.at(until)
		return
	default:
		result = waker.ResultTimeout
	}
	c.backupWakes.Delete(seen.name)
	c.Observer.Woke(seen.name, waker.TriggerBackup, waker.DepthDoze, result, again.now.Sub(since))
}
