package control

import (
	"context"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/sleep"
)

// cluster does what concerns the rest of the cluster: it writes to the API server, except for Events, and asks the
// other instances.
type cluster struct {
	Parts
	clock     apiClock
	backups   backups
	keepAwake keepAwakeRequest
	restart   restartWatch
}

// answeredWithCluster are the actions that the API server answers with the Cluster.
const answeredWithCluster = sleep.Announce | sleep.ReadCluster | sleep.Hibernate | sleep.Fence | sleep.RemoveAnnouncement |
	sleep.Withdraw | sleep.RecordStop | sleep.LiftFence

// do carries out an action. It is called concurrently with the loop.
func (k *cluster) do(ctx context.Context, o order) completed {
	c := completed{Completed: sleep.Completed{Action: o.action}}
	switch o.action {
	case sleep.ListBackups:
		var names []string
		names, c.err = k.Kubernetes.RunningBackups(ctx)
		if c.count = len(names); c.err == nil && o.archiver {
			c.Blocker, c.err = k.Instance.Archiver(ctx)
		}
	case sleep.Announce:
		c.Announcement = o.text
		c.view, c.err = k.Kubernetes.Annotate(ctx, o.view, contract.AnnotationAnnounced, &o.text)
	case sleep.Suspend:
		c.count, c.err = k.Kubernetes.SuspendBackups(ctx, time.Now())
	case sleep.AskSiblings:
		c.answers = ask(ctx, k.Siblings, o.view, k.Pod, true)
	case sleep.ReadCluster:
		c.view, c.err = k.Kubernetes.Get(ctx)
	case sleep.Hibernate:
		c.view, c.err = k.Kubernetes.Hibernate(ctx, o.view, o.at, o.text, o.counts)
	case sleep.Fence:
		c.view, c.err = k.Kubernetes.Fence(ctx, o.view, o.at)
	case sleep.RemoveAnnouncement:
		c.view, c.err = k.Kubernetes.RemoveAnnouncement(ctx, o.view)
	case sleep.Withdraw:
		c.view, c.err = k.Kubernetes.Withdraw(ctx, o.view)
	case sleep.Resume:
		c.resumed, c.err = k.Kubernetes.ResumeBackups(ctx)
	case sleep.RecordStop:
		c.view, c.err = k.Kubernetes.Annotate(ctx, o.view, contract.AnnotationPostgresStopped, &k.PodUID)
	case sleep.LiftFence:
		c.view, c.err = k.Kubernetes.LiftFence(ctx, o.view)
	default: // the others are for the pod
	}
	return c
}

// annotated is the result of an annotation of the Cluster that is no action of the machine.
type annotated struct {
	key    string
	before string          // the resourceVersion that the patch required
	view   kubernetes.View // the Cluster
	err    error
}

// annotate returns the task of such an annotation.
func (k *cluster) annotate(key string, before kubernetes.View, send func(context.Context) (kubernetes.View, error)) task {
	return func(ctx context.Context) event {
		v, err := send(ctx)
		return annotated{key: key, before: before.ResourceVersion, view: v, err: err}
	}
}

// backups records whether a Backup was running.
type backups struct {
	running bool
	next    time.Time // when they are listed again
}

// backupsInterval is how often the Backups are listed while only a Backup keeps the cluster awake.
const backupsInterval = 10 * time.Second

// set records whether one is running.
func (b *backups) set(running bool) {
	*b = backups{running: running, next: time.Now().Add(backupsInterval)}
}

// backupsListed says whether a Backup is running. While the list fails, one counts as running.
type backupsListed struct{ running bool }

// backupsWithin limits how long the loop waits for the list of the Backups.
const backupsWithin = 2 * time.Second

// backupRuns lists the Backups at once, and reports whether one runs. While the list fails, one counts as running.
func (k *cluster) backupRuns(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, backupsWithin)
	defer cancel()
	names, err := k.Kubernetes.RunningBackups(ctx)
	if err != nil || len(names) != 0 {
		k.backups.set(true)
	}
	return k.backups.running
}

// recheckBackups lists the Backups again while one of them keeps the cluster awake.
func (k *cluster) recheckBackups() task {
	if now := time.Now(); !k.backups.running || now.Before(k.backups.next) {
		return nil
	}
	k.backups.set(true)
	return func(ctx context.Context) event {
		names, err := k.Kubernetes.RunningBackups(ctx)
		return backupsListed{running: err != nil || len(names) != 0}
	}
}
