package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// due is what a plan wakes the cluster for, or in how long there is to be another plan.
func due(state State, now time.Time) string {
	var p Plan
	p.Memory = state.Memory
	p.wake(state, now)
	switch {
	case p.Wake != nil:
		return string(p.Wake.Cause)
	case !p.Next.IsZero():
		return "in " + p.Next.Sub(now).String()
	default:
		return ""
	}
}

func TestDecide_wakesWithoutAClient(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }
	asleep := annotate(contract.AnnotationAsleepSince, at(-time.Hour))
	list, noon := annotate(contract.AnnotationWake, "on-connect,window"), annotate(contract.AnnotationKeepAwake, "Sun 12:00-18:00 UTC")
	open := func(d time.Duration) func(*cnpgv1.Cluster) { // a window that opens then
		return annotate(contract.AnnotationKeepAwake, fmt.Sprintf("Sun %s-23:00 UTC", now.Add(d).Format("15:04")))
	}
	request := annotate(contract.AnnotationWakeRequested, at(-time.Minute))
	woken := func(d time.Duration, depth string) func(*cnpgv1.Cluster) {
		value, err := contract.LastWake{At: now.Add(d), By: "192.0.2.9", Depth: depth}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return annotate(contract.AnnotationLastWake, value)
	}
	early := lead("", 0)
	for _, row := range []struct {
		rule    string
		changes changes
		took    time.Duration
		want    string
	}{
		{"a window that is open wakes what has slept since before", changes{switchedOn, asleep, list, noon}, 0, "window"},
		{"from a doze too", changes{dozing, list, noon}, 0, "window"},
		{"also if the annotation lists nothing else", changes{switchedOn, asleep, annotate(contract.AnnotationWake, "window"), noon}, 0, "window"},
		{"and if the time at which it fell asleep was removed", changes{switchedOn, list, noon}, 0, "window"},
		{"not what was put to sleep while it was open", changes{switchedOn, annotate(contract.AnnotationAsleepSince, at(0)), list, noon}, 0,
			"in " + (7*24*time.Hour - early).String()},
		{"nor if the annotation does not list it", changes{switchedOn, asleep, noon}, 0, ""},
		{"nor if it says manual", changes{switchedOn, asleep, annotate(contract.AnnotationWake, "manual"), noon, request}, 0, ""},
		{"nor what a person put to sleep", changes{switchedOn, asleep, list, noon, request, func(c *cnpgv1.Cluster) { c.ManagedFields = by("kubectl") }}, 0, ""},
		{"nor during a maintenance that risks volumes", changes{switchedOn, asleep, list, noon, request, maintained(new(bool))}, 0, ""},
		{"nor while the feature is off", changes{switchedOn, asleep, list, noon, request, annotate(contract.AnnotationEnabled, "false")}, 0, ""},
		{"nor what is awake", changes{list, noon, request}, 0, ""},
		{"a window that opens later wakes it then, and early enough", changes{switchedOn, asleep, list, open(time.Hour)}, 0, "in " + (time.Hour - early).String()},
		{"earlier where the last wake was slow", changes{switchedOn, asleep, list, open(time.Hour)}, 2 * time.Minute,
			"in " + (time.Hour - early - 3*time.Minute).String()},
		{"at most ten minutes", changes{switchedOn, asleep, list, open(time.Hour)}, time.Hour, "in " + (time.Hour - early - 4*time.Minute).String()},
		{"later where it was fast", changes{switchedOn, asleep, list, open(time.Hour)}, time.Second, "in " + (time.Hour - early + 45*time.Second).String()},
		{"a request wakes it", changes{switchedOn, asleep, request}, 0, "request"},
		{"from a doze too, and although connections do not", changes{dozing, request, annotate(contract.AnnotationWake, "window")}, 0, "request"},
		{"once", changes{switchedOn, request, woken(-time.Minute, "")}, 0, ""},
		{"after an earlier wake", changes{switchedOn, request, woken(-2*time.Minute, "")}, 0, "request"},
		{"although the cluster has fallen asleep just after it", changes{switchedOn, request, annotate(contract.AnnotationAsleepSince, at(-51*time.Second))}, 0, "request"},
		{"not if it was put to sleep later", changes{switchedOn, request, annotate(contract.AnnotationAsleepSince, at(-50*time.Second))}, 0, ""},
		{"not one that is older than five minutes", changes{switchedOn, annotate(contract.AnnotationWakeRequested, at(-5*time.Minute))}, 0, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(row.changes...)
			state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations, Memory: Memory{took: row.took}}
			if got := due(state, now); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

func TestDecide_takesOverTheHibernationOfListedTools(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	hibernatedBy := func(manager string) func(*cnpgv1.Cluster) {
		return func(c *cnpgv1.Cluster) {
			switchedOn(c)
			inHibernation(contract.Hibernated, metav1.ConditionTrue)(c)
			c.ManagedFields = by(manager)
		}
	}
	for _, row := range []struct {
		rule    string
		changes changes
		want    string
	}{
		{"one that is listed", changes{hibernatedBy("sablier")}, "sablier"},
		{"not before every pod is gone", changes{hibernatedBy("sablier"), inHibernation(contract.HibernationDeletingPods, metav1.ConditionFalse)}, ""},
		{"not a person's", changes{hibernatedBy("kubectl-annotate")}, ""},
		{"not this project's own", changes{hibernatedBy(contract.FieldManager)}, ""},
		{"not if connections do not wake the cluster", changes{hibernatedBy("sablier"), annotate(contract.AnnotationWake, "manual")}, ""},
		{"not while the feature is off", changes{hibernatedBy("sablier"), annotate(contract.AnnotationEnabled, "false")}, ""},
		{"not of a cluster that is awake", nil, ""},
	} {
		cluster := made(row.changes...)
		state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations, Adopted: []string{"other", "sablier"}}
		if got := Decide(state, now).Adopt; got != row.want {
			t.Errorf("%s: %q, want %q", row.rule, got, row.want)
		}
	}
}

func TestDecide_measuresTheLastWake(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, depth string
		asleep      time.Duration // before the recorded wake; 0: a replica before this one saw the sleep
		byHand      bool
		want        time.Duration
	}{
		{"until a Service is ready", "", time.Hour, false, 8 * time.Second},
		{"not one from a doze", contract.DepthDoze, time.Hour, false, 0},
		{"not one that a replica before this one saw", "", 0, false, 0},
		{"not one of before the sleep, which a person has ended", "", -4 * time.Second, false, 0},
		{"not one of before a person's hibernation, which a person has ended", "", -4 * time.Second, true, 0},
	} {
		value, err := contract.LastWake{At: now.Add(-8 * time.Second), By: "192.0.2.9", Depth: row.depth}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var memory Memory
		if row.asleep != 0 {
			since := now.Add(-8*time.Second - row.asleep)
			cluster := made(switchedOn, annotate(contract.AnnotationAsleepSince, since.Format(time.RFC3339)))
			if row.byHand {
				delete(cluster.Annotations, contract.AnnotationAsleepSince)
				cluster.ManagedFields = by("kubectl-annotate")
				cluster.ManagedFields[1].Time = ptr.To(metav1.NewTime(since))
			}
			memory = Decide(State{Cluster: View(cluster, now), Annotations: cluster.Annotations}, now.Add(-time.Minute)).Memory
		}
		cluster := made(annotate(contract.AnnotationLastWake, value))
		state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations, Services: []Service{{UID: "rw", Name: "rw"}}, Memory: memory}
		state.Memory = Decide(state, now.Add(-time.Second)).Memory
		state.Services[0].Ready = true
		state.Memory = Decide(state, now).Memory
		if got := Decide(state, now.Add(time.Minute)).Memory.took; got != row.want {
			t.Errorf("%s: %s, want %s", row.rule, got, row.want)
		}
	}
}

// TestDecide_wakesByTheCalendar compares the plan with what a clock on the wall shows: in five time zones, for a year.
func TestDecide_wakesByTheCalendar(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"} {
		for _, window := range []struct {
			value    string
			from, to int // hours
			days     []time.Weekday
		}{
			{"Mon-Fri 08:00-18:00 ", 8, 18, []time.Weekday{time.Monday, time.Tuesday, time.Wednesday, time.Thursday, time.Friday}},
			{"Sat 22:00-06:00 ", 22, 30, []time.Weekday{time.Saturday}},
		} {
			t.Run(window.value+zone, func(t *testing.T) {
				t.Parallel()
				location, err := time.LoadLocation(zone)
				if err != nil {
					t.Fatal(err)
				}
				cluster := made(switchedOn, annotate(contract.AnnotationWake, "window"), annotate(contract.AnnotationKeepAwake, window.value+zone))
				state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations, UID: "some"}
				isOpen := func(at time.Time) bool {
					local := at.In(location)
					hour, today := local.Hour(), slices.Contains(window.days, local.Weekday())
					yesterday := slices.Contains(window.days, (local.Weekday()+6)%7)
					return today && hour >= window.from && hour < window.to || yesterday && hour+24 < window.to
				}
				var opened time.Time // when the window that is open did
				early := lead("some", 0)
				begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
				for at := begin.AddDate(0, 0, -2); at.Before(begin.AddDate(1, 0, 0)); at = at.Add(time.Minute) {
					soon := at.Add(early).Truncate(time.Minute)
					switch {
					case !isOpen(at):
						opened = time.Time{}
					case opened.IsZero():
						opened = at
					}
					opens := isOpen(soon) && !isOpen(at)
					if boundary := isOpen(at) != isOpen(at.Add(-time.Minute)) || isOpen(soon) != isOpen(soon.Add(-time.Minute)); !boundary && at.Minute()%30 != 0 || at.Before(begin) {
						continue
					}
					for _, slept := range []time.Duration{time.Minute, time.Hour, 12 * time.Hour} {
						since := at.Add(-slept)
						state.Annotations[contract.AnnotationAsleepSince] = since.Format(time.RFC3339)
						want := opens || !opened.IsZero() && since.Before(opened)
						if got := due(state, at) == string(contract.CauseWindow); got != want {
							t.Fatalf("at %s, asleep for %s: woken %t, want %t", at.In(location), slept, got, want)
						}
					}
				}
			})
		}
	}
}

func TestLead_spreadsTheWakes(t *testing.T) {
	t.Parallel()
	const clusters = 500
	leads := make([]time.Duration, clusters)
	for i := range leads {
		leads[i] = lead(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", i)), 3*time.Second)
		if leads[i] < shortestLead || leads[i] > idle.WakesWithin {
			t.Fatalf("cluster %d is woken %s before", i, leads[i])
		}
	}
	slices.Sort(leads)
	most := 0
	for i := range leads {
		n, _ := slices.BinarySearch(leads, leads[i]+10*time.Second)
		most = max(most, n-i)
	}
	if most > 40 {
		t.Errorf("%d of %d clusters are woken within ten seconds", most, clusters)
	}
}
