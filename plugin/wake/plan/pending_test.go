package plan

import (
	"fmt"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

func TestPendingOf_findsWhatNoInstanceHasApplied(t *testing.T) {
	t.Parallel()
	made := now.Add(-time.Hour)
	database := func(change func(*cnpgv1.Database)) metav1.Object {
		o := &cnpgv1.Database{ObjectMeta: metav1.ObjectMeta{Name: "db", Generation: 2, CreationTimestamp: metav1.NewTime(made)}}
		o.Status.ObservedGeneration = 2
		if change != nil {
			change(o)
		}
		return o
	}
	set := func(field string, at time.Time) func(*cnpgv1.Database) {
		return func(o *cnpgv1.Database) {
			o.Generation = 3
			o.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: at}, FieldsV1: metav1.NewFieldsV1(`{"` + field + `":{}}`)}}
		}
	}
	deleted := func(finalizers ...string) func(*cnpgv1.Database) {
		return func(o *cnpgv1.Database) {
			o.Generation, o.DeletionTimestamp, o.Finalizers = 3, &metav1.Time{Time: now}, finalizers
		}
	}
	other := metav1.ObjectMeta{Name: "x", Generation: 1}
	for _, row := range []struct {
		rule    string
		objects []metav1.Object
		want    Pending
	}{
		{"nothing of what is applied", []metav1.Object{database(nil)}, Pending{}},
		{"nor of what was found to be wrong", []metav1.Object{database(func(o *cnpgv1.Database) { o.Status.Applied = new(bool) })}, Pending{}},
		{"one that was never applied, since it was made", []metav1.Object{database(func(o *cnpgv1.Database) { o.Status.ObservedGeneration = 0 })},
			Pending{Names: []string{"Database db"}, Changed: made}},
		{"one that has changed, since then", []metav1.Object{database(set("f:spec", now))}, Pending{Names: []string{"Database db"}, Changed: now}},
		{"what an instance writes is no change", []metav1.Object{database(set("f:status", now))}, Pending{Names: []string{"Database db"}, Changed: made}},
		{"one that an instance is to delete", []metav1.Object{database(deleted("x.io/y", "cnpg.io/deleteDatabase"))}, Pending{Names: []string{"Database db"}, Changed: now}},
		{"not if it waits for others", []metav1.Object{database(deleted("x.io/y"))}, Pending{}},
		{"of every kind, sorted", []metav1.Object{
			&cnpgv1.Subscription{ObjectMeta: other}, &cnpgv1.Publication{ObjectMeta: other}, &cnpgv1.DatabaseRole{ObjectMeta: other}, database(set("f:spec", now)),
		}, Pending{Names: []string{"Database db", "DatabaseRole x", "Publication x", "Subscription x"}, Changed: now}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(row.want, PendingOf(row.objects)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// asleepFor is of a cluster that has slept for so long.
func asleepFor(d time.Duration) func(*cnpgv1.Cluster) {
	return annotate(contract.AnnotationAsleepSince, now.Add(-d).Format(time.RFC3339))
}

// wokenFor is of a cluster with that last wake.
func wokenFor(t *testing.T, ago time.Duration, cause contract.Cause, unused int) func(*cnpgv1.Cluster) {
	t.Helper()
	return lastWoken(t, contract.LastWake{At: now.Add(-ago), Cause: cause, By: "x", Unused: unused})
}

func TestDecide_wakesForObjects(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	woken := func(ago time.Duration, cause contract.Cause, unused int) func(*cnpgv1.Cluster) {
		return wokenFor(t, ago, cause, unused)
	}
	const object = contract.CauseObject
	day := 24 * time.Hour
	for _, row := range []struct {
		rule    string
		changes changes
		changed time.Duration // how long ago
		want    string
		unused  int
	}{
		{"at once for a change during the sleep", changes{switchedOn, asleepFor(time.Hour)}, time.Minute, "object", 0},
		{"from a doze too", changes{dozing}, time.Minute, "object", 0},
		{"if the annotation lists objects alone", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWake, "objects")}, 0, "object", 0},
		{"not if it does not list them", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWake, "on-connect,window")}, 0, "", 0},
		{"nor if it says manual", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWake, "manual")}, 0, "", 0},
		{"nor what a person put to sleep", changes{switchedOn, asleepFor(time.Hour), func(c *cnpgv1.Cluster) { c.ManagedFields = by("kubectl") }}, 0, "", 0},
		{"nor during a maintenance that risks volumes", changes{switchedOn, asleepFor(time.Hour), maintained(new(bool))}, 0, "", 0},
		{"nor while the feature is off", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationEnabled, "false")}, 0, "", 0},
		{"nor what is awake", nil, 0, "", 0},
		{"a request goes before", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWakeRequested, now.Format(time.RFC3339))}, 0, "request", 0},
		{"a window too", changes{
			switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWake, "window,objects"), annotate(contract.AnnotationKeepAwake, "Sun 12:00-18:00 UTC"),
		}, 0, "window", 0},
		{"at once for a change while it fell asleep", changes{switchedOn, asleepFor(time.Second), woken(day, "", 0)}, time.Minute, "object", 0},
		{"not for one that the awake cluster had time for", changes{switchedOn, asleepFor(time.Second), woken(day, "", 0)}, time.Hour, "in 59m59s ObjectPending", 0},
		{"but an hour later", changes{switchedOn, asleepFor(time.Hour), woken(day, "", 0)}, 2 * time.Hour, "object", 0},
		{"at once for a change since the last wake for objects", changes{switchedOn, asleepFor(time.Second), woken(2*time.Minute, object, 7)}, time.Second, "object", 0},
		{"otherwise after a minute of sleep", changes{switchedOn, asleepFor(time.Second), woken(2*time.Minute, object, 0)}, day, "in 59s ObjectPending", 0},
		{"which ends", changes{switchedOn, asleepFor(time.Minute), woken(3*time.Minute, object, 0)}, day, "object", 1},
		{"then after two", changes{switchedOn, asleepFor(time.Minute), woken(3*time.Minute, object, 1)}, day, "in 1m0s ObjectPending", 0},
		{"then after four", changes{switchedOn, asleepFor(time.Minute), woken(3*time.Minute, object, 2)}, day, "in 3m0s ObjectPending", 0},
		{"at most after an hour", changes{switchedOn, asleepFor(time.Minute), woken(3*time.Minute, object, 90)}, day, "in 59m0s ObjectPending", 0},
		{"also of a doze that was shorter than a minute", changes{dozing, annotate(contract.AnnotationDozingSince, now.Format(time.RFC3339)), woken(40*time.Second, object, 0)}, 50 * time.Second,
			"in 1m0s ObjectPending", 0},
		{"from the wake on if the time of the sleep was removed", changes{switchedOn, woken(30*time.Second, object, 0)}, day, "in 30s ObjectPending", 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(row.changes...)
			state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations, Pending: Pending{Names: []string{"Database db", "Database other"}, Changed: now.Add(-row.changed)}}
			var p Plan
			p.wake(state, now)
			got, unused := due(state, now), 0
			for _, event := range p.Events {
				got += " " + event.Reason
			}
			if p.Wake != nil {
				unused = p.Wake.Unused
			}
			if got != row.want || unused != row.unused {
				t.Errorf("%q after %d in vain, want %q after %d", got, unused, row.want, row.unused)
			}
			if p.Wake != nil && p.Wake.Cause == object && p.Wake.By != "Database db and 1 more" {
				t.Errorf("by %q", p.Wake.By)
			}
		})
	}
}

// An object that can never be applied wakes its cluster seven times in two hours, and then about once an hour.
func TestDecide_wakesLessAndLessForAnObjectThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	var wakes []time.Duration
	last, slept := contract.LastWake{By: "x", At: now.Add(-2 * time.Hour)}, now.Add(-time.Hour)
	for at := now; at.Before(now.Add(6 * time.Hour)); at = at.Add(time.Second) {
		value, err := last.Encode()
		if err != nil {
			t.Fatal(err)
		}
		cluster := made(switchedOn, annotate(contract.AnnotationAsleepSince, slept.Format(time.RFC3339)), annotate(contract.AnnotationLastWake, value))
		state := State{Cluster: View(cluster, at), Annotations: cluster.Annotations, Pending: Pending{Names: []string{"Database db"}, Changed: now}}
		if p := Decide(state, at); p.Wake != nil {
			wakes = append(wakes, at.Sub(now).Round(time.Minute))
			last = contract.LastWake{At: at, Cause: p.Wake.Cause, By: p.Wake.By, Unused: p.Wake.Unused}
			at = at.Add(time.Minute) // awake
			slept = at
		}
	}
	want := "[0s 2m0s 5m0s 10m0s 19m0s 36m0s 1h9m0s 2h10m0s 3h11m0s 4h12m0s 5h13m0s]"
	if got := fmt.Sprint(wakes); got != want {
		t.Errorf("woken after %s, want %s", got, want)
	}
}
