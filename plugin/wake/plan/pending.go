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

// Pending are objects of a cluster that only a running instance can apply or delete, and that none has.
type Pending struct {
	// Names are their kinds and names, sorted.
	Names []string
	// Changed is when the newest of them was made, was to be deleted, or got another specification.
	Changed time.Time
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
		waits := o.GetGeneration() != observed // of a failure the instance writes no generation
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

// changedAt returns when the object was made, was to be deleted, or got another specification. What instances write, the
// status and a finalizer, is no change.
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
	// objectsTake is how long an awake cluster has for objects: an instance tries a failed one again every 30 seconds
	// (1.30: databaseReconciliationInterval in internal/management/controller/database_controller.go).
	objectsTake = time.Minute
	// longestPending is the longest time until a cluster is woken again for objects that were not applied.
	longestPending = time.Hour
)

// wakeForObjects wakes the cluster at once if one of the objects has changed since its last wake, and not before the last
// minute before it fell asleep. Otherwise they were pending while it was awake, and wait: for a minute of sleep after the
// first wake for them, and twice as long after each further one, at most an hour; for that hour if the last wake was for
// anything else.
func (p *Plan) wakeForObjects(pending Pending, last contract.LastWake, since, now time.Time) {
	due := Wake{Cause: contract.CauseObject, By: pending.by()}
	if !pending.Changed.After(last.At) || !pending.Changed.After(since.Add(-objectsTake)) {
		wait := longestPending
		if last.Cause == contract.CauseObject {
			due.Unused = last.Unused + 1
			wait = min(objectsTake<<min(last.Unused, 6), longestPending)
		}
		if last.At.After(since) {
			since = last.At // the annotation that says since when it sleeps was removed
		}
		if until := since.Add(wait); now.Before(until) {
			p.at(until)
			p.Events = append(p.Events, Event{
				Warning: true, Reason: "ObjectPending", Occasion: fmt.Sprint(pending.Changed.Unix(), pending.Names),
				Message: fmt.Sprintf("The cluster was awake, but has not applied or deleted %s. It is woken for that again, after a "+
					"longer sleep each time, at most an hour. status.message of the object says what is wrong", due.By),
			})
			return
		}
	}
	p.Wake = &due
}
