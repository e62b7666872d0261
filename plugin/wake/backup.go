package wake

import (
	"context"
	"fmt"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/wake/plan"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// backupPage is how many Backups are read at once: a namespace may hold thousands, and no informer keeps them.
const backupPage = 500

// listPause is how long the Backups of a cluster are not listed after that has failed, because a list that takes too
// long once will again.
const listPause = 5 * time.Minute

// listBackups makes the plan again with the cluster's Backups. While they cannot be listed, the plan stays as it is.
func (a *Access) listBackups(ctx context.Context, seen *snapshot, planned plan.Plan, again *requeue) plan.Plan {
	memory := &planned.Memory
	if !again.now.Before(memory.ListBackupsFrom) {
		completed, err := a.completedBackup(ctx, seen.name)
		if err == nil {
			seen.state.Backups.Completed = &completed
			return plan.Decide(seen.state, again.now)
		}
		memory.ListBackupsFrom = again.now.Add(listPause)
		a.log(ctx, seen, "cannot list the Backups, retrying later", true, "after", listPause, "error", err.Error())
	}
	again.at(memory.ListBackupsFrom)
	return planned
}

// completedBackup reads the cluster's newest completed Backup, and when the newest was made, from the API server.
func (a *Access) completedBackup(ctx context.Context, cluster types.NamespacedName) (newest plan.Completed, err error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	from := &client.ListOptions{Namespace: cluster.Namespace, Limit: backupPage}
	for more := true; more; more = from.Continue != "" {
		var page cnpgv1.BackupList
		if err := a.APIReader.List(ctx, &page, from); err != nil {
			return plan.Completed{}, fmt.Errorf("list the Backups of Cluster %s: %w", cluster, err)
		}
		for i := range page.Items {
			backup, at := &page.Items[i], page.Items[i].CreationTimestamp.Time
			if backup.Status.StoppedAt != nil { // a plugin need not say that
				at = backup.Status.StoppedAt.Time
			}
			if backup.Spec.Cluster.Name != cluster.Name || backup.Status.Phase == cnpgv1.BackupPhaseFailed {
				continue
			}
			if made := backup.CreationTimestamp.Time; made.After(newest.Made) {
				newest.Made = made
			}
			if backup.Status.Phase == cnpgv1.BackupPhaseCompleted && at.After(newest.At) {
				newest.At, newest.Kind = at, backup.Spec.DeepCopy()
			}
		}
		from.Continue = page.Continue
	}
	return newest, nil
}

// makeBackup makes the Backup of a plan, and has the plan remember it. One that exists was made by another replica, or
// before this one was started.
func (a *Access) makeBackup(ctx context.Context, seen *snapshot, planned *plan.Plan) error {
	backup := planned.MakeBackup
	if backup == nil {
		return nil
	}
	err := a.Client.Create(ctx, backup, client.FieldOwner(contract.FieldManager))
	if client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("make Backup %s/%s: %w", backup.Namespace, backup.Name, err)
	}
	a.log(ctx, seen, "the cluster has a new Backup, because its last one was too old", false, "backup", backup.Name)
	planned.Memory.MadeBackup = backup.Name
	return nil
}

// LastBackup returns when the last Backup of the sleeping cluster was completed, or the cluster was created, by the
// last reconciliation; zero: that is unknown, or it is awake.
func (c *Controller) LastBackup(cluster types.NamespacedName) time.Time {
	memory := c.memories.Get(cluster)
	return memory.LastBackup()
}
