package plan

import (
	"fmt"
	"testing"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// scheduled is a ScheduledBackup that was suspended for the sleep an hour ago, after the operator had looked at it.
func scheduled(times string, changes ...func(*cnpgv1.ScheduledBackup)) cnpgv1.ScheduledBackup {
	schedule := cnpgv1.ScheduledBackup{
		ObjectMeta: metav1.ObjectMeta{
			Name: "nightly", CreationTimestamp: metav1.NewTime(now.AddDate(-1, 0, 0)),
			Annotations: map[string]string{contract.AnnotationSuspended: now.Add(-time.Hour).Format(time.RFC3339)},
		},
		Spec:   cnpgv1.ScheduledBackupSpec{Schedule: times, Suspend: ptr.To(true)},
		Status: cnpgv1.ScheduledBackupStatus{LastCheckTime: ptr.To(metav1.NewTime(now.Add(-time.Hour)))},
	}
	suspendedBy(contract.FieldManager)(&schedule)
	for _, change := range changes {
		change(&schedule)
	}
	return schedule
}

func suspendedBy(manager string) func(*cnpgv1.ScheduledBackup) {
	return func(s *cnpgv1.ScheduledBackup) {
		s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:suspend":{}}}`)}}
	}
}

func TestSlotsOf_followTheOperatorsRules(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.ScheduledBackup)
	unchecked := func(s *cnpgv1.ScheduledBackup) {
		s.Status.LastCheckTime, s.CreationTimestamp = nil, metav1.NewTime(now.Add(-90*time.Minute))
	}
	immediate := func(s *cnpgv1.ScheduledBackup) { s.Spec.Immediate = ptr.To(true) }
	unmarked := func(s *cnpgv1.ScheduledBackup) { s.Annotations = nil }
	resumed := func(s *cnpgv1.ScheduledBackup) { s.Spec.Suspend = nil }
	const hourly = "0 15 * * * *"
	for _, row := range []struct {
		rule, times string
		changes     changes
		want        string // of the next run
	}{
		{"a run that passed during the sleep is due", hourly, nil, "2026-03-01 11:15"},
		{"one is ahead", "0 30 3 * * *", nil, "2026-03-02 03:30"},
		{"a descriptor", "@weekly", nil, "2026-03-08 00:00"},
		{"an interval counts from the last look", "@every 90m", nil, "2026-03-01 12:30"},
		{"several that were missed are one", "0 * * * * *", nil, "2026-03-01 11:01"},
		{"without a look, from when it was made", hourly, changes{unchecked}, "2026-03-01 11:15"},
		{"an immediate one without a look is due since then", hourly, changes{unchecked, immediate}, "2026-03-01 10:30"},
		{"an immediate one after the first look", hourly, changes{immediate}, "2026-03-01 11:15"},
		{"one that is not suspended", hourly, changes{unmarked, resumed}, "2026-03-01 11:15"},
		{"not one that a person has suspended", hourly, changes{unmarked}, ""},
		{"nor one whose suspension another manager owns", hourly, changes{suspendedBy("kubectl")}, ""},
		{"nor another cluster's", hourly, changes{func(s *cnpgv1.ScheduledBackup) { s.Spec.Cluster.Name = "other" }}, ""},
		{"nor one that never comes", "0 0 0 30 2 *", nil, ""},
		{"nor one that is invalid", "never", nil, ""},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got := ""
			for _, slot := range SlotsOf(made(), []cnpgv1.ScheduledBackup{scheduled(row.times, row.changes...)}) {
				got += slot.At.Format("2006-01-02 15:04")
			}
			if got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

func TestSlotsOf_spreadsAFleet(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, times string
		changes     []func(*cnpgv1.ScheduledBackup)
		from, until time.Duration
	}{
		{"over five minutes", "@daily", nil, 0, 5 * time.Minute},
		{"or a tenth of the time between two runs", "0 */10 * * * *", nil, 0, time.Minute},
		{"but a minute before the run of one that is not suspended", "@daily", []func(*cnpgv1.ScheduledBackup){
			func(s *cnpgv1.ScheduledBackup) { s.Spec.Suspend = nil },
		}, -time.Minute, -time.Minute + 1},
	} {
		var first, last time.Duration
		for i := range 200 {
			cluster := made()
			cluster.UID = types.UID(fmt.Sprint("cluster-", i))
			slot := SlotsOf(cluster, []cnpgv1.ScheduledBackup{scheduled(row.times, row.changes...)})[0]
			late := slot.Wakes.Sub(slot.At)
			if i == 0 {
				first, last = late, late
			}
			first, last = min(first, late), max(last, late)
		}
		if first < row.from || last >= row.until || last-first < (row.until-row.from)/2 && row.from == 0 {
			t.Errorf("%s: from %s to %s", row.rule, first, last)
		}
	}
}

func TestDecide_wakesForBackups(t *testing.T) {
	t.Parallel()
	type changes = []func(*cnpgv1.Cluster)
	woken := func(ago time.Duration, cause contract.Cause, unused int) func(*cnpgv1.Cluster) {
		return wokenFor(t, ago, cause, unused)
	}
	list := annotate(contract.AnnotationWake, "on-connect,backup")
	const backup = contract.CauseBackup
	day := 24 * time.Hour
	for _, row := range []struct {
		rule    string
		changes changes
		due     []time.Duration // how long ago
		want    string
		unused  int
	}{
		{"at its time", changes{switchedOn, asleepFor(time.Hour), list}, []time.Duration{0}, "backup", 0},
		{"later if the plugin was down", changes{switchedOn, asleepFor(day), list, woken(2*day, "", 0)}, []time.Duration{20 * time.Hour}, "backup", 0},
		{"not before", changes{switchedOn, asleepFor(time.Hour), list}, []time.Duration{-time.Hour}, "in 1h0m0s", 0},
		{"the first of several", changes{switchedOn, asleepFor(time.Hour), list}, []time.Duration{-time.Hour, -time.Minute}, "in 1m0s", 0},
		{"from a doze too", changes{dozing, list}, []time.Duration{0}, "backup", 0},
		{"if the annotation lists them alone", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWake, "backup")}, []time.Duration{0}, "backup", 0},
		{"not by default", changes{switchedOn, asleepFor(time.Hour)}, []time.Duration{0}, "", 0},
		{"nor from a doze", changes{dozing}, []time.Duration{0}, "", 0},
		{"nor if it says manual", changes{switchedOn, asleepFor(time.Hour), annotate(contract.AnnotationWake, "manual")}, []time.Duration{0}, "", 0},
		{"nor what a person put to sleep", changes{switchedOn, asleepFor(time.Hour), list, func(c *cnpgv1.Cluster) { c.ManagedFields = by("kubectl") }}, []time.Duration{0}, "", 0},
		{"nor during a maintenance that risks volumes", changes{switchedOn, asleepFor(time.Hour), list, maintained(new(bool))}, []time.Duration{0}, "", 0},
		{"nor while the feature is off", changes{switchedOn, asleepFor(time.Hour), list, annotate(contract.AnnotationEnabled, "false")}, []time.Duration{0}, "", 0},
		{"nor what is awake", changes{list}, []time.Duration{0}, "", 0},
		{"a request goes before", changes{switchedOn, asleepFor(time.Hour), list, annotate(contract.AnnotationWakeRequested, now.Format(time.RFC3339))}, []time.Duration{0}, "request", 0},
		{"at once for one that was due while it fell asleep", changes{switchedOn, asleepFor(time.Second), list, woken(day, "", 0)}, []time.Duration{time.Minute}, "backup", 0},
		{"at once for one since the last wake for a Backup", changes{switchedOn, asleepFor(time.Second), list, woken(2*time.Minute, backup, 7)}, []time.Duration{time.Second}, "backup", 0},
		{"although another stays pending", changes{switchedOn, asleepFor(time.Second), list, woken(2*time.Minute, backup, 7)}, []time.Duration{day, time.Second}, "backup", 0},
		{"otherwise after a minute of sleep", changes{switchedOn, asleepFor(time.Second), list, woken(2*time.Minute, backup, 0)}, []time.Duration{day}, "in 59s BackupPending", 0},
		{"which ends", changes{switchedOn, asleepFor(time.Minute), list, woken(3*time.Minute, backup, 0)}, []time.Duration{day}, "backup", 1},
		{"then after two", changes{switchedOn, asleepFor(time.Minute), list, woken(3*time.Minute, backup, 1)}, []time.Duration{day}, "in 1m0s BackupPending", 0},
		{"at most after an hour", changes{switchedOn, asleepFor(time.Minute), list, woken(3*time.Minute, backup, 90)}, []time.Duration{day}, "in 59m0s BackupPending", 0},
		{"after an hour if the last wake was for anything else", changes{switchedOn, asleepFor(time.Minute), list, woken(3*time.Minute, contract.CauseObject, 0)}, []time.Duration{day}, "in 59m0s BackupPending", 0},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			cluster := made(row.changes...)
			state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations}
			for i, ago := range row.due {
				state.Slots = append(state.Slots, Slot{Schedule: fmt.Sprint("nightly-", i), At: now.Add(-ago), Wakes: now.Add(-ago)})
			}
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
		})
	}
}

// Backups that take longer than the time between two of them are due again when the cluster falls asleep.
func TestDecide_wakesAgainAfterABackup(t *testing.T) {
	t.Parallel()
	for asleep, want := range map[time.Duration]string{time.Second: "in 59s", time.Minute: "backup"} {
		cluster := made(switchedOn, annotate(contract.AnnotationWake, "on-connect,backup"), asleepFor(asleep),
			wokenFor(t, 30*time.Minute, contract.CauseBackup, 7))
		state := State{Cluster: View(cluster, now), Annotations: cluster.Annotations, Slots: []Slot{
			{Schedule: "b", At: now.Add(-20 * time.Minute), Wakes: now.Add(-20 * time.Minute), Made: now.Add(-29 * time.Minute)},
			{Schedule: "a", At: now.Add(-time.Hour), Wakes: now.Add(-time.Hour)},
		}}
		var p Plan
		if p.wake(state, now); len(p.Events) != 0 || due(state, now) != want {
			t.Errorf("asleep for %s: %q, %d Events, want %q and none", asleep, due(state, now), len(p.Events), want)
		}
		if p.Wake != nil && (p.Wake.By != "ScheduledBackup a and 1 more" || p.Wake.Unused != 0) {
			t.Errorf("woken for %s after %d in vain", p.Wake.By, p.Wake.Unused)
		}
	}
}

// TestDecide_wakesForEachBackup compares the wakes of ten weeks, around a leap day, with a calendar that is searched minute by
// minute. The operator makes one Backup after each wake.
func TestDecide_wakesForEachBackup(t *testing.T) {
	t.Parallel()
	begin := time.Date(2028, 1, 17, 10, 7, 0, 0, time.UTC)
	end := begin.AddDate(0, 0, 70)
	for times, matches := range map[string]func(time.Time) bool{
		"0 30 3 * * *":       func(t time.Time) bool { return t.Hour() == 3 && t.Minute() == 30 },
		"0 0 22 * * MON-FRI": func(t time.Time) bool { return t.Hour() == 22 && t.Minute() == 0 && t.Weekday()%6 != 0 },
		"0 0 0 1 * *":        func(t time.Time) bool { return t.Day() == 1 && t.Hour() == 0 && t.Minute() == 0 },
		"0 0 12 29 2 *":      func(t time.Time) bool { return t.Month() == 2 && t.Day() == 29 && t.Hour() == 12 && t.Minute() == 0 },
		"0 10,40 */2 * * *":  func(t time.Time) bool { return t.Hour()%2 == 0 && (t.Minute() == 10 || t.Minute() == 40) },
		"0 0 6 13 * FRI":     func(t time.Time) bool { return t.Hour() == 6 && t.Minute() == 0 && (t.Day() == 13 || t.Weekday() == 5) },
	} {
		t.Run(times, func(t *testing.T) {
			t.Parallel()
			var want, got []time.Time
			for at := begin.Truncate(time.Minute); at.Before(end); at = at.Add(time.Minute) {
				if at.After(begin) && matches(at) {
					want = append(want, at)
				}
			}
			looked, slept, last := begin, begin, contract.LastWake{By: "x", At: begin.Add(-time.Hour)}
			for at := begin; ; {
				value, err := last.Encode()
				if err != nil {
					t.Fatal(err)
				}
				cluster := made(switchedOn, annotate(contract.AnnotationWake, "backup"), annotate(contract.AnnotationLastWake, value),
					annotate(contract.AnnotationAsleepSince, slept.Format(time.RFC3339)))
				schedule := scheduled(times)
				schedule.Status.LastCheckTime = ptr.To(metav1.NewTime(looked))
				slots := SlotsOf(cluster, []cnpgv1.ScheduledBackup{schedule})
				p := Decide(State{Cluster: View(cluster, at), Annotations: cluster.Annotations, Slots: slots}, at)
				if p.Wake == nil {
					if !p.Next.After(at) {
						t.Fatalf("at %s the next look is at %s", at, p.Next)
					}
					if at = p.Next; !at.Before(end) {
						break
					}
					continue
				}
				if late := at.Sub(slots[0].At); late < 0 || late >= spread {
					t.Fatalf("woken at %s for %s", at, slots[0].At)
				}
				got = append(got, slots[0].At)
				last = contract.LastWake{At: at, Cause: p.Wake.Cause, By: p.Wake.By, Unused: p.Wake.Unused}
				looked, slept = at.Add(10*time.Second), at.Add(2*time.Minute)
				at = slept
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("woken for (-calendar +plan):\n%s", diff)
			}
		})
	}
}
