package plan

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Pending describes what a cluster must be woken for: objects that only a running instance can apply or delete, and
// that none has applied or deleted yet, or ScheduledBackups that are due and [byMaxAge].
type Pending struct {
	// Names are their kinds and names, sorted.
	Names []string
	// Changed is when the newest of them was made, was to be deleted, got another specification, or was due.
	Changed time.Time
	// Untried says that the last wake was not in vain for one of them: the operator has made a Backup since, and the
	// next run is due already, or the last Backup exceeded its maximum age while the cluster was awake for another cause.
	Untried bool
}

// SpecField is how an object's managed fields name its specification.
const SpecField = `"f:spec"`

// operatorsFinalizer begins the names of the finalizers that an instance removes once it has deleted an object.
const operatorsFinalizer = "cnpg.io/"

func isOperators(finalizer string) bool { return strings.HasPrefix(finalizer, operatorsFinalizer) }

// PendingOf finds the pending ones among a cluster's objects.
func PendingOf(objects []metav1.Object) Pending {
	var found Pending
	for _, o := range objects {
		kind, observed := observedOf(o)
		waits := o.GetGeneration() != observed // after a failure the instance does not update observedGeneration
		if o.GetDeletionTimestamp() != nil {
			waits = slices.ContainsFunc(o.GetFinalizers(), isOperators)
		}
		if !waits {
			continue
		}
		found.Names = append(found.Names, kind+" "+o.GetName())
		if changed := changedAt(o); changed.After(found.Changed) {
			found.Changed = changed
		}
	}
	slices.Sort(found.Names)
	return found
}

// observedOf returns an object's kind, and the generation that an instance has applied.
func observedOf(o metav1.Object) (kind string, generation int64) {
	switch o := o.(type) {
	case *cnpgv1.Database:
		return "Database", o.Status.ObservedGeneration
	case *cnpgv1.DatabaseRole:
		return "DatabaseRole", o.Status.ObservedGeneration
	case *cnpgv1.Publication:
		return "Publication", o.Status.ObservedGeneration
	case *cnpgv1.Subscription:
		return "Subscription", o.Status.ObservedGeneration
	default:
		return "", o.GetGeneration()
	}
}

// changedAt returns when the object was made, was to be deleted, or got another specification. What instances write,
// the status and a finalizer, is no change.
func changedAt(o metav1.Object) time.Time {
	changed := o.GetCreationTimestamp().Time
	if deleted := o.GetDeletionTimestamp(); deleted != nil {
		changed = deleted.Time
	}
	for _, entry := range o.GetManagedFields() {
		if entry.Time != nil && entry.Time.After(changed) && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(SpecField)) {
			changed = entry.Time.Time
		}
	}
	return changed
}

// by names the first of them, and says how many more there are: an Event and an annotation have little room.
func (p Pending) by() string {
	if more := len(p.Names) - 1; more > 0 {
		return fmt.Sprintf("%s and %d more", p.Names[0], more)
	}
	return p.Names[0]
}

const (
	// pendingTakes is how long an awake cluster has for objects and Backups: an instance tries a failed object again every
	// 30 seconds (1.30: databaseReconciliationInterval in internal/management/controller/database_controller.go).
	pendingTakes = time.Minute
	// longestPending is the longest time until a cluster is woken again for what has stayed pending.
	longestPending = time.Hour
)

// wakeForPending wakes the cluster at once if one of the objects has changed, or one of the Backups has become due,
// since its last wake, and not before the last minute before it fell asleep. Otherwise they were pending while it was
// awake, and wait: for a minute of sleep after the first wake for them, and twice as long after each further one, at
// most an hour; for that hour if the last wake was for anything else, and for a minute while they are untried.
func (p *Plan) wakeForPending(cause contract.Cause, pending Pending, last contract.LastWake, since, now time.Time) {
	if len(pending.Names) == 0 {
		return
	}
	due := Wake{Cause: cause, By: pending.by()}
	if !pending.Changed.After(last.At) || !pending.Changed.After(since.Add(-pendingTakes)) {
		wait := longestPending
		switch {
		case pending.Untried:
			wait = pendingTakes
		case last.Cause == cause:
			due.Unused = last.Unused + 1
			wait = min(pendingTakes<<min(last.Unused, 6), longestPending)
		}
		if last.At.After(since) {
			since = last.At // the annotation that says since when it sleeps was removed
		}
		if until := since.Add(wait); now.Before(until) {
			if p.at(until); !pending.Untried {
				p.Events = append(p.Events, pending.event(cause))
			}
			return
		}
	}
	p.Wake = &due
}

// event says that the cluster was awake in vain.
func (p Pending) event(cause contract.Cause) Event {
	const later = "The plugin wakes it for that after at most an hour of sleep"
	occasion := fmt.Sprint(p.Changed.Unix(), p.Names)
	if cause == contract.CauseBackup {
		lacks, whose := "the operator has created no Backup for "+p.by(), "schedule's"
		if p.Names[0] == byMaxAge {
			lacks, whose = "no Backup was completed for "+p.by(), "Backup's"
		}
		return Event{Warning: true, Reason: "BackupPending", Occasion: occasion, Message: fmt.Sprintf(
			"The cluster was awake, but %s. %s. The %s Events may say why", lacks, later, whose)}
	}
	return Event{Warning: true, Reason: "ObjectPending", Occasion: occasion, Message: fmt.Sprintf(
		"The cluster was awake, but has not applied or deleted %s. %s. status.message of the object says what is wrong",
		p.by(), later)}
}
